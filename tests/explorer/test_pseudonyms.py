from __future__ import annotations

from pathlib import Path

from clocs.explorer.session import key_of, pseudonyms


def test_pseudonyms_are_stable_distinct_and_depend_on_the_key(tmp_path: Path) -> None:
    patients = [("a", str(i)) for i in range(5000)] + [("b", str(i)) for i in range(5000)]
    key = key_of(tmp_path)
    assert (tmp_path / "pseudonyms.key").stat().st_mode & 0o077 == 0
    names = pseudonyms(patients, key)
    assert names == pseudonyms(patients, key_of(tmp_path))
    assert len(set(names)) == len(patients)
    assert not set(names) & set(pseudonyms(patients, b"\0" * 32))
