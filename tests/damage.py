"""Damage for tests: single bits flipped in files."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

from clocs.errors import ClocsError


def flipped(content: bytes, most: int, *, empty: bool = True) -> Iterator[bytes]:
    """The content with one bit flipped: in every byte, or in as many bytes as `most`, drawn.

    Without `empty`, bytes of zero are left alone: of a database most are.
    """
    draw = random.Random(len(content))
    places = [at for at, value in enumerate(content) if value or empty]
    for at in places if len(places) <= most else sorted(draw.sample(places, most)):
        changed = bytearray(content)
        changed[at] ^= 1 << draw.randrange(8)
        yield bytes(changed)


def read_damaged(path: Path, read: Callable[[], object], *, most: int = 200) -> int:
    """Flip bits of a file one by one: each time `read` must refuse it, or give what it gave before.

    Returns:
        How many were refused, each with a `ClocsError`.
    """
    content, before, refused = path.read_bytes(), read(), 0
    for changed in flipped(content, most):
        path.write_bytes(changed)
        try:
            after = read()
        except ClocsError:
            refused += 1
        else:
            assert after == before, "damage changed what was read"
    path.write_bytes(content)
    assert read() == before
    return refused
