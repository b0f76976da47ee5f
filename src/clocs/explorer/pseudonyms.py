"""Pseudonyms: what a page calls patients, so that their IDs stay where they are.

A pseudonym is a keyed hash of dataset and patient. The key is random, made once and kept in the
cache folder, readable by its owner alone: the same patient keeps the same pseudonym (a shared
address works tomorrow), and nobody without the key can go from IDs to pseudonyms. Knows nothing
about pages.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

DIGITS = 10  # hexadecimal: among 100,000 patients two meet once in 220 times, and are told apart
_KEY = "pseudonyms.key"


def key_of(folder: Path) -> bytes:
    """The folder's key, made where there is none."""
    path = folder / _KEY
    folder.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        key = path.read_bytes()
        if len(key) == 32:
            return key
        handle = os.open(path, os.O_WRONLY | os.O_TRUNC, 0o600)  # cut short: make another
    key = secrets.token_bytes(32)
    with os.fdopen(handle, "wb") as file:
        file.write(key)
    return key


def pseudonyms(patients: Iterable[tuple[str, str]], key: bytes) -> list[str]:
    """One a (dataset, patient), all distinct."""
    keyed = hashlib.blake2b(key=key, digest_size=DIGITS // 2)
    taken: dict[str, None] = {}
    for dataset, patient in patients:
        word = keyed.copy()
        word.update(f"{dataset}\0{patient}".encode())
        while (code := word.hexdigest()) in taken:
            word.update(b"\0again")
        taken[code] = None
    return list(taken)
