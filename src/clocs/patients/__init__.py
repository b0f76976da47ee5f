"""Patients: their embeddings, the distances between them, and the search for similar ones.

Embeddings and indexes are plain arrays and tables on disk, without pickle. Knows nothing about the
command line or web pages.
"""

from __future__ import annotations

from clocs.patients.embeddings import Embeddings
from clocs.patients.filters import Where
from clocs.patients.index import Hits, PatientIndex
from clocs.patients.rows import LEVELS, ROW_SCHEMA, Level

__all__ = ["LEVELS", "ROW_SCHEMA", "Embeddings", "Hits", "Level", "PatientIndex", "Where"]
