"""Learning from unlabeled ECGs: contrastive learning across time, leads and patients.

The public names are in `__init__.pyi`; each is imported when first used, so that `import clocs` is
light.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

# the module of each name
MODULES = {
    name: module
    for module, name in re.findall(
        r"^from (\S+) import (\w+) as", Path(__file__).with_suffix(".pyi").read_text("utf-8"), re.M
    )
}
# without ClocsEncoder, which needs scikit-learn: `import *` must do without it
__all__ = sorted({*MODULES} - {"ClocsEncoder"})  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module 'clocs' has no attribute {name!r}")
    return getattr(import_module(MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(MODULES)
