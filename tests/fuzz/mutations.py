"""Damage to files: flipped bits, lost, doubled and foreign pieces, extreme numbers, other fields.

Everything is a function of the random numbers given, so that an input can be made again.
"""

from __future__ import annotations

import io
import json
import re
import sqlite3
import zipfile
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import polars as pl

Files = dict[str, bytes]

_SIZES = (127, 128, 255, 256, 32767, 65535, 2**24, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1)
INTEGERS: tuple[int, ...] = (0, 1, -1, *_SIZES, -(2**15), -(2**31), -(2**63), 2**64 - 1)
WORDS: tuple[str, ...] = (
    *("", "0", "-1", "0.1", "1e300", "-1e308", "1e-300", "1e-40", "nan", "inf", "-inf"),
    *("2147483648", "9" * 20, "9" * 400, "9" * 5000, "0x10", "1_0", "½", "٣", "true", "null"),
    *("~", "#", "\0", "..", "../../etc/passwd", "/dev/zero", "é", "A" * 300, "A" * 100_000),
    *("(" * 500, "[" * 9_000, " " * 50_000, "\t" * 5_000, "1:" * 3_000, ",", "/", "+", ":", "x"),
    *("\n", "\r", "\ufeff"),
)
VALUES: tuple[Any, ...] = (
    *(*INTEGERS, *WORDS[:20], None, True, False, 1.5, 1e308, -1e-308, 10**400),
    *(float("nan"), float("inf"), [], {}, [[]], [None] * 100, {"a": {}}, [0, 1], ["a", "b"]),
)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)
_WORD = re.compile(rb"[^\s,/()\[\]{}:\"'<>=]+")

Edit = Callable[[bytes, Random], bytes]


def damage(files: Files, rng: Random, others: Sequence[Files]) -> Files:
    """The files of a sample, at least one of them changed; `others` lend pieces."""
    new = dict(files)
    while new == files:
        if len(new) > 1 and rng.random() < 0.03:
            _damage_folder(new, rng)
        for _ in range(rng.choice((1, 1, 1, 1, 2, 3, 6))):
            name = rng.choice(list(new))
            other = rng.choice(others)
            new[name] = _edit(new[name], rng, other.get(name) or rng.choice(list(other.values())))
    return new


def _damage_folder(files: Files, rng: Random) -> None:
    """Lose a file, or let one take the content of another."""
    first, second = rng.sample(list(files), 2)
    match rng.randrange(3):
        case 0:
            del files[first]
        case 1:
            files[first] = files[second]
        case _:
            files[first], files[second] = files[second], files[first]


def _edit(data: bytes, rng: Random, other: bytes) -> bytes:
    structured = _structured(data)
    if structured is not None and rng.random() < 0.5:
        try:
            return structured(data, rng)
        except KeyboardInterrupt:
            raise
        except BaseException:  # damaged before: it has no structure left, and polars panics
            return _flip(data, rng)
    if rng.random() < 0.1:
        return _splice(data, rng, other)
    return rng.choice(_EDITS)(data, rng)


def _structured(data: bytes) -> Edit | None:
    """How to change a field of this content, by its first bytes."""
    if data[:4] == b"PK\3\4":
        return _zip
    if data[:4] == b"PAR1":
        return _parquet
    if data[:15] == b"SQLite format 3":
        return _sqlite
    if data[8:9] == b"{" and int.from_bytes(data[:8], "little") < len(data):
        return _safetensors
    if data[:200].lstrip()[:1] in (b"{", b"["):
        return _json
    return _text if b"\0" not in data[:1000] else None


def _place(data: bytes, rng: Random) -> int:
    """A position: anywhere, or near the start or the end, where most formats keep their fields."""
    size = len(data)
    near = min(size, 256)
    return (rng.randrange(size + 1), rng.randrange(near + 1), size - rng.randrange(near + 1))[
        rng.choice((0, 0, 1, 2))
    ]


def _stretch(data: bytes, rng: Random) -> tuple[int, int]:
    start = _place(data, rng)
    return start, min(len(data), start + rng.choice((1, 2, 4, 8, 16, 64, 512, 4096)))


def _flip(data: bytes, rng: Random) -> bytes:
    new = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        if new:
            new[min(_place(data, rng), len(new) - 1)] ^= 1 << rng.randrange(8)
    return bytes(new)


def _byte(data: bytes, rng: Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + bytes([rng.choice((0, 255, 127, 128, rng.randrange(256)))]) + data[at + 1 :]


def _integer(data: bytes, rng: Random) -> bytes:
    """Overwrite a binary number."""
    at, size = _place(data, rng), rng.choice((1, 2, 4, 8))
    number = rng.choice(INTEGERS) % (1 << 8 * size)
    return data[:at] + number.to_bytes(size, rng.choice(("little", "big"))) + data[at + size :]


def _cut(data: bytes, rng: Random) -> bytes:
    return data[: _place(data, rng)]


def _remove(data: bytes, rng: Random) -> bytes:
    start, stop = _stretch(data, rng)
    return data[:start] + data[stop:]


def _repeat(data: bytes, rng: Random) -> bytes:
    start, stop = _stretch(data, rng)
    times = rng.choice((1, 1, 2, 100)) if stop - start < 600 else 1
    return data[:stop] + data[start:stop] * times + data[stop:]


def _zero(data: bytes, rng: Random) -> bytes:
    start, stop = _stretch(data, rng)
    return data[:start] + rng.choice((b"\0", b"\xff")) * (stop - start) + data[stop:]


def _insert(data: bytes, rng: Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + rng.randbytes(rng.choice((1, 2, 4, 8, 64))) + data[at:]


def _splice(data: bytes, rng: Random, other: bytes) -> bytes:
    """A piece of another file in place of one's own."""
    start, stop = _stretch(data, rng)
    begin, end = _stretch(other, rng)
    return data[:start] + other[begin:end] + data[stop:]


_EDITS: tuple[Edit, ...] = (_flip, _flip, _byte, _integer, _cut, _remove, _repeat, _zero, _insert)


def _text(data: bytes, rng: Random) -> bytes:
    """Another number or word, or lines lost, doubled or exchanged."""
    kind = rng.randrange(8)
    if kind < 6:
        found = (_NUMBER if kind < 4 else _WORD).search(data, _place(data, rng))
        start, stop = found.span() if found else (len(data), len(data))
        if kind == 5:  # insert
            stop = start
        return data[:start] + rng.choice(WORDS).encode() + data[stop:]
    lines = data.split(b"\n")
    one, two = rng.randrange(len(lines)), rng.randrange(len(lines))
    if kind == 6:
        lines[one], lines[two] = lines[two], lines[one]
    else:
        lines[one : one + 1] = [lines[one]] * rng.choice((0, 2, 2, 300))
    return b"\n".join(lines)


def _json(data: bytes, rng: Random) -> bytes:
    held = [json.loads(data)]
    _change_field(held, rng)
    return json.dumps(
        held[0], indent=rng.choice((None, 2)), ensure_ascii=rng.random() < 0.5
    ).encode()


def _change_field(root: Any, rng: Random) -> None:
    """Change one field somewhere inside: another value, another name, lost, or nested."""
    places: list[tuple[Any, Any]] = []
    open_ones = [root]
    while open_ones:
        box = open_ones.pop()
        for key in box.keys() if isinstance(box, dict) else range(len(box)):
            places.append((box, key))
            if isinstance(box[key], dict | list) and box[key]:
                open_ones.append(box[key])
    box, key = rng.choice(places)
    match rng.randrange(8):
        case 0:
            del box[key]
        case 1 if isinstance(box, dict):
            box[rng.choice(WORDS[:20])] = box.pop(key)
        case 2:
            box[key] = [box[key]]
        case 3:
            other, name = rng.choice(places)
            box[key] = json.loads(json.dumps(other[name]))
        case 4 if isinstance(box[key], int | float):
            box[key] = box[key] * rng.choice((-1, 0.5, 2, 1000, 1e9)) + rng.choice((0, 1, -1))
        case 5 if isinstance(box[key], list):
            box[key] = box[key] * 2
        case _:
            box[key] = rng.choice(VALUES)
    if not root:
        root.append(rng.choice(VALUES))


def _safetensors(data: bytes, rng: Random) -> bytes:
    """A field of the header, or of the JSON inside its metadata."""
    size = int.from_bytes(data[:8], "little")
    held = [json.loads(data[8 : 8 + size])]
    inner = held[0].get("__metadata__") if isinstance(held[0], dict) else None
    if inner and rng.random() < 0.7:
        name = rng.choice(list(inner))
        inner[name] = _json(inner[name].encode(), rng).decode()
    else:
        _change_field(held, rng)
    head = json.dumps(held[0]).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + data[8 + size :]


def _zip(data: bytes, rng: Random) -> bytes:
    """Damage inside a member, with its checksum made anew; or another name for it."""
    members: list[tuple[str, bytes]] = []
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    which = rng.randrange(len(members))
    name, content = members[which]
    if rng.random() < 0.2:
        name = rng.choice((*WORDS[:30], name.upper(), f"{name}/", f".{name}", members[0][0])) or "a"
    else:
        content = _edit(content, rng, rng.choice(members)[1])
    members[which] = (name, content)
    held = io.BytesIO()
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    with zipfile.ZipFile(
        held, "w", method if len(data) < 100_000 else zipfile.ZIP_STORED
    ) as archive:
        for member, inside in members:
            archive.writestr(zipfile.ZipInfo(member.replace("\0", "?")[:60_000]), inside)
    return held.getvalue()


def _parquet(data: bytes, rng: Random) -> bytes:
    """Another value in a cell, or columns and rows lost or doubled."""
    table = pl.read_parquet(io.BytesIO(data), use_pyarrow=False)
    facts = {
        k: v for k, v in pl.read_parquet_metadata(io.BytesIO(data)).items() if k != "ARROW:schema"
    }
    name = rng.choice(table.columns)
    match rng.randrange(7):
        case 0:
            table = table.drop(name)
        case 1:
            table = table.head(rng.randrange(table.height + 1))
        case 2:
            table = pl.concat([table, table.head(1)])
        case 3 if facts:
            key = rng.choice(list(facts))
            facts[key] = _json(facts[key].encode(), rng).decode()
        case 4:
            table = table.with_columns(pl.lit(None, table.schema[name]).alias(name))
        case _:
            values = table[name].to_list()
            row = rng.randrange(len(values))
            values[row] = _other_value(values[row], rng)
            table = table.with_columns(pl.Series(name, values, table.schema[name], strict=False))
    held = io.BytesIO()
    table.write_parquet(held, metadata=facts)
    return held.getvalue()


def _other_value(value: Any, rng: Random) -> Any:
    if isinstance(value, list):
        return rng.choice(([], value * 2, [_other_value(one, rng) for one in value]))
    if isinstance(value, dict):
        return {key: _other_value(one, rng) for key, one in value.items()}
    if isinstance(value, str):
        return rng.choice(WORDS)
    if isinstance(value, int):
        return rng.choice((*INTEGERS[:-1], None))
    return rng.choice((*INTEGERS[:-1], 1e300, float("nan"), float("inf"), -0.5, None))


def _sqlite(data: bytes, rng: Random) -> bytes:
    """Another value in a cell of a database."""
    base = sqlite3.connect(":memory:")
    try:
        # In memory there is no write-ahead log: version 1 of the format for the time being.
        base.deserialize(data[:18] + b"\1\1" + data[20:])
        tables = [
            name for (name,) in base.execute("SELECT name FROM sqlite_schema WHERE type='table'")
        ]
        table = rng.choice(tables)
        columns = [row[1] for row in base.execute(f"PRAGMA table_info({table})")]
        column = rng.choice(columns)
        value = rng.choice((*INTEGERS[:15], *WORDS[:20], None, 1e300, b"\xff\xfe", "{}", "[]", "{"))
        rows = [row for (row,) in base.execute(f"SELECT rowid FROM {table}")]
        where = f"rowid = {rng.choice(rows)}"
        if rng.random() < 0.1:
            base.execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO other")
        elif rng.random() < 0.1:
            base.execute(f"DELETE FROM {table} WHERE {where}")
        else:
            base.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (value,))
        base.commit()
        new = base.serialize()
    finally:
        base.close()
    return new[:18] + data[18:20] + new[20:]
