"""Pseudonyms: names for patients on the page, so that their IDs stay on the server.

A pseudonym is a keyed hash of dataset and patient. The key is random, made once and kept in the
cache folder, readable only by its owner: a patient keeps the same pseudonym (a shared link still
works tomorrow), and nobody without the key can compute pseudonyms from IDs.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

DIGITS = 10  # hexadecimal; 100,000 patients collide with probability 1/220, which is resolved
_KEY = "pseudonyms.key"


def key_of(folder: Path) -> bytes:
    """The folder's key, made if there is none."""
    path = folder / _KEY
    folder.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        key = path.read_bytes()
        if len(key) == 32:
            return key
        handle = os.open(path, os.O_WRONLY | os.O_TRUNC, 0o600)  # truncated: make another
    key = secrets.token_bytes(32)
    with os.fdopen(handle, "wb") as file:
        file.write(key)
    return key


def pseudonyms(patients: Iterable[tuple[str, str]], key: bytes) -> list[str]:
    """One per (dataset, patient), all distinct."""
    keyed = hashlib.blake2b(key=key, digest_size=DIGITS // 2)
    taken: dict[str, None] = {}
    for dataset, patient in patients:
        word = keyed.copy()
        word.update(f"{dataset}\0{patient}".encode())
        while (code := word.hexdigest()) in taken:
            word.update(b"\0again")
        taken[code] = None
    return list(taken)
