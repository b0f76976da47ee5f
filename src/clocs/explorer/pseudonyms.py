"""Pseudonyms of patients: keyed hashes of their IDs, and the order in which everything is sent.

A store is sorted by patient ID, and lists of IDs are often public. So rows are put in the order of
their pseudonyms before anything is computed from them: whatever depends on their order (the map,
ties between neighbours, row numbers) then says nothing about IDs to those without the key.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from clocs.errors import FileError
from clocs.files import private_cache, writing
from clocs.patients.embeddings import Embeddings

DIGITS = 10  # of pseudonyms; 100,000 patients collide with probability 1/220, which is resolved
_KEY_BYTES = 32


def key_of(folder: Path) -> bytes:
    """The folder's secret key of pseudonyms, made if there is none and readable only by its owner.

    A patient keeps the same pseudonym (a shared link still works tomorrow), and nobody without the
    key can compute pseudonyms from IDs.
    """
    path = folder / "pseudonyms.key"
    with writing(path):
        private_cache(folder)
        with suppress(FileNotFoundError):
            return _existing(path)
        # Complete under another name first: of two processes that start at once, one makes the key.
        draft = folder / f".pseudonyms-{secrets.token_hex(8)}"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(draft, path)
            except FileExistsError:
                pass
            except OSError:  # a file system without hard links
                draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        return _existing(path)


def _existing(path: Path) -> bytes:
    with path.open("rb") as file:
        facts = os.fstat(file.fileno())
        key = file.read(_KEY_BYTES + 1)
    if len(key) != _KEY_BYTES:
        raise FileError(
            f"{path} is damaged: a key has {_KEY_BYTES} bytes; delete it, and patients get new "
            "pseudonyms"
        )
    if hasattr(os, "getuid") and facts.st_uid not in (os.getuid(), 0):
        raise FileError(f"{path} belongs to another user; delete it, or give another `cache`")
    if stat.S_IMODE(facts.st_mode) & 0o077:
        path.chmod(0o600)
    return key


def pseudonyms(named: Iterable[tuple[str, str]], key: bytes) -> list[str]:
    """A keyed hash of each (dataset, ID), all distinct."""
    keyed = hashlib.blake2b(key=key, digest_size=DIGITS // 2)
    taken: dict[str, None] = {}
    for dataset, name in named:
        word = keyed.copy()
        word.update(f"{dataset}\0{name}".encode())
        while (code := word.hexdigest()) in taken:
            word.update(b"\0again")
        taken[code] = None
    return list(taken)


def in_order_of_pseudonyms(embeddings: Embeddings, key: bytes) -> tuple[Embeddings, list[str]]:
    """The same patients sorted by their pseudonyms, and these."""
    codes = pseudonyms(embeddings.rows.select("dataset", "patient").iter_rows(), key)
    order = np.argsort(np.array(codes, "S"))
    patients = replace(embeddings, vectors=embeddings.vectors[order], rows=embeddings.rows[order])
    return patients, [codes[i] for i in order]
