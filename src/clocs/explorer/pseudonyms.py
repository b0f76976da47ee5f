"""Pseudonyms of patients: keyed hashes of their IDs, and the order in which everything is sent.

A store is sorted by patient ID, and lists of IDs are often public. So rows are put in the order of
their pseudonyms before anything is computed from them: whatever depends on their order (the map,
ties between neighbours, row numbers) then says nothing about IDs to those without the key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from clocs.datasets.pseudonyms import keyed_hash
from clocs.patients.embeddings import Embeddings

DIGITS = 10  # of pseudonyms; 100,000 patients collide with probability 1/220, which is resolved


def pseudonyms(named: Iterable[tuple[str, str]], key: bytes) -> list[str]:
    """A keyed hash of each (dataset, ID), all distinct."""
    keyed = keyed_hash(key, DIGITS // 2)
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
