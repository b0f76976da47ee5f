"""The tables behind the ledger: rows in SQLite, each with a digest of itself.

The digest of a row is compared whenever it is read. The XOR of all digests is kept as well and
compared when the file is opened, so that no row goes missing unnoticed; opening also lets SQLite
check its own structure. A file of an earlier version gets what it lacks when it is first opened.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import xor
from pathlib import Path
from typing import Any

from clocs.errors import BusyError, ClocsError, SettingError, StoreError
from clocs.files import file_error, once_free

VERSION = 2  # 0 has no digests, 1 no table of draws


def _digest(*values: Any) -> str:
    return hashlib.blake2b(repr(values).encode(), digest_size=16).hexdigest()


def _combined(digests: Sequence[str]) -> str:
    """Of any number of digests in any order; two equal ones cancel each other."""
    return f"{reduce(xor, (int(one, 16) for one in digests), 0):032x}"


class RowDatabase:
    """Tables of rows that are found by name, their first column."""

    def __init__(self, path: Path, tables: Mapping[str, Mapping[str, str]]) -> None:
        """Open a file, or make it.

        Args:
            path: The file.
            tables: The columns of each table, in order: their names and types in SQL.
        """
        self.path = path
        self._columns = {table: tuple(columns) for table, columns in tables.items()}
        try:
            self._db = sqlite3.connect(path, timeout=60, isolation_level=None)
        except sqlite3.Error as error:
            raise self._problem(error) from error
        try:
            self._db.create_function("digest_of", -1, _digest, deterministic=True)
            # of a new file that another is writing, SQLite refuses this without waiting
            once_free(lambda: self.execute("PRAGMA journal_mode=WAL"))
            self.execute("PRAGMA synchronous=FULL")  # a run takes seconds; its row can take 10 ms
            with self._transaction():
                self._check(tables)
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows that a statement gives; what SQLite complains of becomes a sentence."""
        try:
            return self._db.execute(statement, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._problem(error) from error

    def rows(self, table: str, clause: str = "", *values: Any) -> Iterator[dict[str, Any]]:
        """Rows of a table, each compared with its digest."""
        columns = self._columns[table]
        listed = f"SELECT {', '.join(columns)}, digest FROM {table} {clause}"
        for *row, digest in self.execute(listed, *values):
            if _digest(*row) != digest:
                raise self.damaged(f"the row of {row[0]} differs from its digest")
            yield dict(zip(columns, row, strict=True))

    def insert(self, table: str, row: Mapping[str, Any]) -> None:
        """Add a row unless there is one of the same name; what it does not have is NULL."""
        values = [row.get(column) for column in self._columns[table]]
        if self.execute(f"SELECT 1 FROM {table} WHERE name = ?", values[0]):
            return
        marks = ", ".join("?" * (len(values) + 1))
        with self._transaction():
            digest = _digest(*values)
            self.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", *values, digest)
            if self.execute("SELECT changes()") == [(1,)]:
                self._count(digest)

    def change(self, table: str, name: str, assignments: str, *values: Any) -> None:
        """Change a row, after comparing it with its digest."""
        where, columns = "WHERE name = ?", ", ".join(self._columns[table])
        with self._transaction():
            for row in self.rows(table, where, name):
                self.execute(f"UPDATE {table} SET {assignments} {where}", *values, name)
                self.execute(f"UPDATE {table} SET digest = digest_of({columns}) {where}", name)
                ((after,),) = self.execute(f"SELECT digest FROM {table} {where}", name)
                self._count(_digest(*row.values()), after)

    def damaged(self, why: object) -> StoreError:
        words = " ".join(str(why).split())  # SQLite's own may have several lines
        return StoreError(
            f"{self.path} is damaged ({words}); restore it from a copy, or start again in a new "
            "folder"
        )

    def _check(self, tables: Mapping[str, Mapping[str, str]]) -> None:
        """Make the tables where there are none, and check those that are there."""
        ((version,),) = self.execute("PRAGMA user_version")
        known = {name for (name,) in self.execute("SELECT name FROM sqlite_master")}
        if not 0 <= version <= VERSION:
            raise StoreError(
                f"{self.path} has format {version}, but this version of clocs reads format "
                f"{VERSION}; use the version that made it, or give a new folder"
            )
        for table, columns in tables.items():
            if table not in known:
                listed = ", ".join(f"{name} {kind}" for name, kind in columns.items())
                self.execute(f"CREATE TABLE {table} ({listed}, digest TEXT)")
            elif version == 0:
                self.execute(f"ALTER TABLE {table} ADD COLUMN digest TEXT")
                self.execute(f"UPDATE {table} SET digest = digest_of({', '.join(columns)})")
        if version == 0:
            self.execute("CREATE TABLE seal (total TEXT NOT NULL)")
            self.execute("INSERT INTO seal VALUES (?)", self._total())
        if version < VERSION:
            self.execute(f"PRAGMA user_version = {VERSION}")
        ((verdict,), *_) = self.execute("PRAGMA integrity_check(1)")
        if verdict != "ok":
            raise self.damaged(verdict)
        if self.execute("SELECT total FROM seal") != [(self._total(),)]:
            raise self.damaged("a row is missing, or one too many")

    def _total(self) -> str:
        found = [self.execute(f"SELECT digest FROM {table}") for table in self._columns]
        try:
            return _combined([digest for rows in found for (digest,) in rows])
        except (ValueError, TypeError) as error:
            raise self.damaged("a digest is none") from error

    def _count(self, *digests: str) -> None:
        """Add digests to the total, or take them away."""
        for (total,) in self.execute("SELECT total FROM seal"):
            self.execute("UPDATE seal SET total = ?", _combined([total, *digests]))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of the changes inside, or none."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.rollback()
            raise

    def _problem(self, error: Exception) -> ClocsError:
        name = str(getattr(error, "sqlite_errorname", ""))
        if name == "SQLITE_NOTADB":
            return SettingError(f"{self.path} is not a list of runs ({error}); give another folder")
        if name in ("SQLITE_BUSY", "SQLITE_LOCKED"):
            return BusyError(f"{self.path} is in use by another process; try again when it is done")
        if name.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY")):
            return file_error(error, self.path, doing="written")
        return self.damaged(error)
