"""HTML pages from this package's templates. Needs jinja2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from clocs._version import __version__
from clocs.files import PUBLIC, write_atomic


def write_page(path: Path, template: str, **values: Any) -> None:
    """Fill a template and write it; what is not marked as safe is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("clocs.experiments"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template(template).render(version=__version__, **values)
    write_atomic(path, page.encode(), mode=PUBLIC)
