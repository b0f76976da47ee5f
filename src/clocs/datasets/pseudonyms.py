"""Pseudonyms of patients: keyed hashes of what files call them, and the private map back.

The key and the map lie in a folder beside the store, STORE.patients, which only its owner can
look into. Without the key nobody can compute pseudonyms from a list of names or numbers.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from clocs.errors import FileError, StoreError
from clocs.files import locked, once_free, private_cache, write_atomic, writing

KEY = "pseudonyms.key"
_KEY_BYTES = 32
PSEUDONYM = r"^P-[A-Z2-7]{12}$"
_CHARACTERS = 12  # base32, 60 bits: a million patients collide with probability 4 in ten million


def keyed_hash(key: bytes, digest_size: int) -> hashlib.blake2b:
    """The hash that all pseudonyms are made with."""
    return hashlib.blake2b(key=key, digest_size=digest_size)


@dataclass(frozen=True)
class Pseudonyms:
    """Gives each patient field of a header the same pseudonym, `P-` and 12 letters and digits.

    Attributes:
        key: Secret.
        folder: Holds the key and the map; None where neither is kept, as in a dry run.
    """

    key: bytes = field(default_factory=lambda: secrets.token_bytes(_KEY_BYTES), repr=False)
    folder: Path | None = None

    def __call__(self, patient: str) -> str:
        made = keyed_hash(self.key, 8)
        made.update(" ".join(patient.split()).encode(errors="surrogatepass"))
        return f"P-{base64.b32encode(made.digest()).decode()[:_CHARACTERS]}"

    def remember(self, store: str, patients: Mapping[str, str]) -> None:
        """Add to the map of a store: from pseudonyms to what the files say.

        Raises:
            StoreError: There is no folder: the key was taken away before the store was complete.
        """
        if not patients:
            return
        if self.folder is None:
            raise StoreError(
                f"the pseudonyms of {store} cannot be continued without their key; put {KEY} back "
                f"into {store}.patients, or delete the store and prepare it again"
            )
        path = self.folder / f"{store}.json"
        try:
            known = json.loads(path.read_bytes()) if path.exists() else {}
        except ValueError:
            raise FileError(
                f"{path} is damaged; delete it and its store, and start again"
            ) from None
        if not patients.items() <= known.items():
            text = json.dumps({**known, **patients}, indent=1, ensure_ascii=False, sort_keys=True)
            write_atomic(path, text.encode(errors="surrogatepass"))


def folder_of(store: Path) -> Path:
    """Where the key and the map of a store are: beside it."""
    whole = store.absolute()
    return whole.with_name(f"{whole.name}.patients")


def remove_unused(folder: Path) -> None:
    """Remove a key that has named nobody."""
    with suppress(OSError):
        if [one.name for one in folder.iterdir()] == [KEY]:
            (folder / KEY).unlink()
            folder.rmdir()


def _make_key(path: Path) -> None:
    with locked(path.parent):  # of two processes that start at once, one makes it
        if not path.exists():
            write_atomic(path, secrets.token_bytes(_KEY_BYTES))


def key_of(folder: Path) -> bytes:
    """The folder's secret key of pseudonyms, made if there is none and readable only by its owner.

    A patient keeps the same pseudonym (a shared link still works tomorrow), and nobody without the
    key can compute pseudonyms from IDs.
    """
    path = folder / KEY
    with writing(path):
        private_cache(folder)
        once_free(partial(_make_key, path))
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
