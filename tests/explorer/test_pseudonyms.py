from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

from clocs.datasets.pseudonyms import key_of
from clocs.errors import FileError
from clocs.explorer.embed_stores import reference_distances
from clocs.explorer.open import open_session
from clocs.explorer.server import make_api
from clocs.explorer.session import Session, pseudonyms
from clocs.frames.splits import PARTS, assign
from clocs.patients.embeddings import Embeddings
from clocs.web.packing import unpack
from clocs.web.shield import Shield

PUBLIC_LIST = [f"A{i:05d}" for i in range(1, 8529)]  # the IDs of PhysioNet 2017


def client_of(session: Session) -> httpx.Client:
    return TestClient(Shield(make_api(session)), base_url="http://127.0.0.1:8000")


def test_pseudonyms_are_stable_distinct_and_depend_on_the_key(tmp_path: Path) -> None:
    patients = [("a", str(i)) for i in range(5000)] + [("b", str(i)) for i in range(5000)]
    key = key_of(tmp_path)
    assert (tmp_path / "pseudonyms.key").stat().st_mode & 0o077 == 0
    names = pseudonyms(patients, key)
    assert names == pseudonyms(patients, key_of(tmp_path))
    assert len(set(names)) == len(patients)
    assert not set(names) & set(pseudonyms(patients, b"\0" * 32))


def test_a_key_that_others_could_read_is_closed_and_a_damaged_one_is_refused(
    tmp_path: Path,
) -> None:
    key, file = key_of(tmp_path), tmp_path / "pseudonyms.key"
    file.chmod(0o644)
    assert key_of(tmp_path) == key
    assert file.stat().st_mode & 0o077 == 0
    assert [one.name for one in tmp_path.iterdir()] == ["pseudonyms.key"]
    file.write_bytes(key[:7])
    with pytest.raises(FileError, match="damaged"):
        key_of(tmp_path)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Session, httpx.Client]]:
    """Patients with a public list of IDs, in its order, as a store has them; half of them equal."""
    folder = tmp_path_factory.mktemp("attacked")
    generator = np.random.default_rng(0)
    n = len(PUBLIC_LIST)
    vectors = generator.normal(size=(n, 8)).astype(np.float32)
    vectors[::2] = vectors[0]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = Embeddings.make_rows(
        {
            "dataset": ["physionet2017"] * n,
            "patient": PUBLIC_LIST,
            "labels": [["N", "AF"] if i % 2 else ["AF", "N"] for i in range(n)],
            "split": np.array(PARTS)[assign(PUBLIC_LIST, "physionet2017", 0)],
        },
        n,
    )
    embeddings = Embeddings(vectors, rows, "patient", "e" * 64, problems=(("A99999.mat", "flat"),))
    embeddings.save(folder / "patients.parquet")
    session = open_session(embeddings=folder / "patients.parquet", cache=folder / "cache")
    with client_of(session) as client:
        yield session, client


def test_a_public_list_of_ids_opens_no_more_pseudonyms_than_chance(
    attacked: tuple[Session, httpx.Client],
) -> None:
    session, client = attacked
    _, arrays = unpack(client.get("/api/map").content)
    codes = [bytes(code).hex() for code in arrays["codes"]]
    own = dict(zip(session.codes, session.embeddings.rows["patient"], strict=True))
    # Guessing opens one on average; ten or more have a probability of one in a million.
    assert sum(own[code] == name for code, name in zip(codes, PUBLIC_LIST, strict=True)) < 10
    by_row = {client.get(f"/api/patients/{code}").json()["row"]: code for code in codes[::40]}
    assert sum(own[code] == PUBLIC_LIST[row] for row, code in by_row.items()) < 10
    # Nothing on the map grows with the ID.
    place = np.array([PUBLIC_LIST.index(own[code]) for code in codes], float)
    for name, array in arrays.items():
        for column in array.reshape(len(codes), -1).T.astype(float):
            if np.ptp(column):
                assert abs(np.corrcoef(place, column)[0, 1]) < 5 / len(codes) ** 0.5, name


def test_equally_near_patients_are_not_listed_in_the_order_of_their_ids(
    attacked: tuple[Session, httpx.Client],
) -> None:
    session, client = attacked
    own = dict(zip(session.codes, session.embeddings.rows["patient"], strict=True))
    one = next(code for code, name in own.items() if PUBLIC_LIST.index(name) % 2 == 0)
    near = client.get(f"/api/patients/{one}/neighbors?k=100").json()["neighbors"]
    assert len({n["distance"] for n in near}) == 1
    names = [own[n["code"]] for n in near]
    assert names != sorted(names)
    assert max(names) > PUBLIC_LIST[2000]  # nor are they the first ones of the list
    table = client.get(f"/api/patients/{one}/neighbors.csv?k=100").text.splitlines()[1:]
    assert [line.split(",")[1] for line in table] == [n["code"] for n in near]


def test_the_split_which_is_a_hash_of_the_id_is_sent_with_ids_only(
    attacked: tuple[Session, httpx.Client],
) -> None:
    session, client = attacked
    code = session.codes[0]
    assert "split" not in unpack(client.get("/api/map").content)[1]
    assert client.get("/api/session").json()["splits"] == []
    assert client.get(f"/api/patients/{code}").json()["split"] is None
    near = client.get(f"/api/patients/{code}/neighbors").json()["neighbors"]
    assert {n["split"] for n in near} == {None}
    session.show_ids = True
    try:
        assert "split" in unpack(client.get("/api/map").content)[1]
        assert client.get(f"/api/patients/{code}").json()["split"] in PARTS
    finally:
        session.show_ids = False


def test_notes_and_order_of_labels_say_nothing_about_ids(
    attacked: tuple[Session, httpx.Client],
) -> None:
    session, client = attacked
    notes = client.get("/api/session").json()["notes"]
    assert notes and "A99999" not in json.dumps(notes)
    for code in session.codes[:10]:
        assert client.get(f"/api/patients/{code}").json()["labels"] == ["AF", "N"]


def test_no_message_about_a_recording_contains_its_id(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = next(iter(session.stores.values()))
    with client_of(session) as client:
        for code in session.codes[:3]:
            answer = client.get(f"/api/patients/{code}/recordings/0/signal?lead=V99")
            assert answer.status_code == 422 and "V99" in answer.json()["message"]
            assert not any(name in answer.text for name in store.table["id"])

        def damaged(row: int) -> None:
            raise FileError(f"recording {store.table['id'][row]} is damaged")

        monkeypatch.setattr(store, "recording", damaged)
        vars(session).pop("_kept", None)  # which keeps what other tests have read
        answer = client.get(f"/api/patients/{session.codes[-1]}/recordings/0/signal")
    assert answer.status_code == 422 and "cannot be read" in answer.json()["message"]
    assert not any(name in answer.text for name in store.table["id"])


def test_recordings_of_a_patient_are_not_in_the_order_of_their_ids(session: Session) -> None:
    same = []
    for row in range(len(session.codes)):
        _, places = session._recordings(row)  # in the store, which is sorted by ID
        assert len(places) == 2 and places == session._recordings(row)[1]
        same.append(places == sorted(places))
    assert 5 < sum(same) < len(same) - 5


def test_the_order_of_patients_does_not_change_the_reference_distances() -> None:
    halves = np.random.default_rng(0).normal(size=(50, 2, 8)).astype(np.float32)
    turned = np.random.default_rng(1).permutation(50)
    assert (
        reference_distances(halves).histogram() == reference_distances(halves[turned]).histogram()
    )


def test_a_session_in_another_order_is_refused(session: Session) -> None:
    with pytest.raises(ValueError, match="order of their pseudonyms"):
        replace(session, codes=session.codes[::-1])
