"""Groups of patients are saved as files, compared and exported."""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from scipy.stats import binom, binomtest
from starlette.testclient import TestClient

from clocs.errors import ClocsError
from clocs.explorer.groups import NameTakenError, beats_of, save_cohort
from clocs.explorer.server import make_api
from clocs.explorer.session import Session
from clocs.patients.cohort import read_cohort
from clocs.web.shield import Shield


@pytest.fixture
def own(session: Session, tmp_path: Path) -> Session:
    """With a folder of its own for cohorts."""
    return replace(session, cohorts=tmp_path / "cohorts")


@pytest.fixture
def client(own: Session) -> Iterator[httpx.Client]:
    with visitor(own) as made:
        yield made


def visitor(session: Session) -> TestClient:
    return TestClient(Shield(make_api(session)), base_url="http://127.0.0.1:8000")


def save(client: httpx.Client, name: str, codes: list[str], **more: Any) -> httpx.Response:
    return client.post("/api/cohorts", json={"name": name, "codes": codes, **more})


def test_a_saved_cohort_is_a_private_file_of_ids_and_there_after_a_restart(
    client: httpx.Client, own: Session, tmp_path: Path
) -> None:
    codes = list(own.codes[4:9])
    made = save(client, "  Young AF,  women (2) ", codes)
    assert made.status_code == 201
    assert made.json()["name"] == "Young AF, women (2)"
    assert made.json()["file"] == "cohorts/Young AF, women (2).csv"  # not where it lies
    file = tmp_path / "cohorts" / "Young AF, women (2).csv"
    assert file.stat().st_mode & 0o077 == 0 and file.parent.stat().st_mode & 0o077 == 0
    ids = own.embeddings.rows["patient"][4:9].to_list()
    assert read_cohort(file).ids == {f"{own.datasets[0]}:{one}" for one in ids}
    assert not any(one in made.text for one in ids)
    with visitor(replace(own)) as another:  # a new session on the same folder
        (facts,) = another.get("/api/cohorts").json()
        assert (facts["name"], facts["patients"], facts["elsewhere"]) == (
            "Young AF, women (2)",
            5,
            0,
        )
        assert another.get(f"/api/cohorts/{facts['name']}").json()["codes"] == codes


def test_a_name_that_is_taken_is_refused_and_replaced_only_when_asked(
    client: httpx.Client, own: Session
) -> None:
    assert save(client, "AF", list(own.codes[:3])).status_code == 201
    for name in ("AF", "af", " AF "):
        answer = save(client, name, list(own.codes[5:9]))
        assert answer.status_code == 409
        assert "'AF' already" in answer.json()["message"]
    assert len(client.get("/api/cohorts/AF").json()["codes"]) == 3
    replaced = save(client, "af", list(own.codes[5:9]), replace=True)
    assert replaced.status_code == 201 and replaced.json()["name"] == "AF"
    assert client.get("/api/cohorts/AF").json()["codes"] == list(own.codes[5:9])
    assert [one["name"] for one in client.get("/api/cohorts").json()] == ["AF"]


def test_a_cohort_is_renamed_and_deleted(client: httpx.Client, own: Session) -> None:
    codes = list(own.codes[:3])
    save(client, "AF", codes)
    save(client, "other", codes)
    assert client.patch("/api/cohorts/AF", json={"name": "Other"}).status_code == 409
    assert client.patch("/api/cohorts/AF", json={"name": "../x"}).status_code == 422
    renamed = client.patch("/api/cohorts/AF", json={"name": "Fibrillation"})
    assert renamed.status_code == 200 and renamed.json()["codes"] == codes
    assert client.delete("/api/cohorts/AF").status_code == 404
    assert client.delete("/api/cohorts/other").status_code == 204
    assert [one["name"] for one in client.get("/api/cohorts").json()] == ["Fibrillation"]


def test_of_two_who_save_the_same_name_at_once_one_is_refused(tmp_path: Path) -> None:
    start = threading.Barrier(4)
    outcomes: list[str] = []

    def write(who: int) -> None:
        start.wait()
        try:
            save_cohort(tmp_path, "one", [("a", str(who))])
            outcomes.append(f"a:{who}")
        except NameTakenError:
            outcomes.append("")

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    (winner,) = filter(None, outcomes)
    assert len(outcomes) == 4 and read_cohort(tmp_path / "one.csv").ids == {winner}
    assert [one.name for one in tmp_path.iterdir()] == ["one.csv"]


@pytest.mark.parametrize(
    "name", ["", "../x", "a/b", ".hidden", "con:1", "x" * 61, "a\\b", "tail.", "\u202eabc"]
)
def test_a_name_that_is_no_name_of_a_file_is_refused(
    name: str, client: httpx.Client, own: Session, tmp_path: Path
) -> None:
    answer = save(client, name, [own.codes[0]])
    assert answer.status_code == 422 and answer.json()["message"]
    assert not any(tmp_path.rglob("*.csv"))


def test_bad_groups_files_and_folders_get_a_sentence(
    client: httpx.Client, own: Session, tmp_path: Path
) -> None:
    assert save(client, "none", []).status_code == 422
    assert save(client, "bad", ["x"]).status_code == 422
    assert save(client, "stranger", ["0" * 10]).status_code == 404
    assert not (tmp_path / "cohorts").exists()
    (tmp_path / "cohorts").mkdir()
    (tmp_path / "cohorts" / "notes.csv").write_bytes(b"\xff\xfe")
    (tmp_path / "cohorts" / "other.csv").write_text("dataset,patient\nelsewhere,1\n")
    notes, other = client.get("/api/cohorts").json()
    assert notes["problem"] and str(tmp_path) not in notes["problem"]
    assert (other["patients"], other["elsewhere"]) == (0, 1)
    for path, status in (
        ("/api/cohorts/notes", 422),
        ("/api/cohorts/nobody", 404),
        ("/api/cohorts/..%2F..%2Fetc", 404),
    ):
        answer = client.get(path)
        assert answer.status_code == status and answer.json()["message"]
    (tmp_path / "file").write_text("")
    with pytest.raises(ClocsError, match="cannot be written"):
        save_cohort(tmp_path / "file", "x", [("a", "1")])


def test_ids_leave_the_server_only_where_they_are_shown(
    client: httpx.Client, own: Session, tmp_path: Path
) -> None:
    group = {"codes": list(own.codes[:4])}
    ids = own.embeddings.rows["patient"][:4].to_list()
    hidden = client.post("/api/groups/table", json=group)
    rows = list(csv.DictReader(io.StringIO(hidden.text)))
    assert [row["code"] for row in rows] == group["codes"]
    assert not any(one in hidden.text for one in ids) and "split" not in rows[0]
    with visitor(replace(own, show_ids=True)) as trusted:
        file = tmp_path / "table.csv"
        file.write_bytes(trusted.post("/api/groups/table", json=group).content)
        assert read_cohort(file).ids == {f"{own.datasets[0]}:{one}" for one in ids}


def test_two_groups_are_compared_by_those_in_whom_something_is_known(
    client: httpx.Client, own: Session
) -> None:
    first, second = list(own.codes[:15]), list(own.codes[10:])
    made = client.post("/api/groups/comparison", json={"first": first, "second": second}).json()
    assert made["patients"] == [15, len(own.codes) - 10] and made["in_both"] == 5
    sections = {one["title"]: one["rows"] for one in made["sections"]}
    rows = own.embeddings.rows
    for group, chosen in enumerate((rows[:15], rows[10:])):
        for row in sections["Diagnosis"]:
            expected = sum(row["value"] in labels for labels in chosen["labels"].to_list())
            assert row["shares"][group]["count"] == expected
        women = next(row for row in sections["Sex"] if row["value"] == "female")["shares"][group]
        assert women["count"] == (chosen["sex"] == "female").sum()
        assert women["of"] == chosen["sex"].is_not_null().sum()
        wilson = binomtest(women["count"], women["of"]).proportion_ci(method="wilson")
        assert (women["low"], women["high"]) == pytest.approx((wilson.low, wilson.high))
        pr = own.measured["pr"][:15] if group == 0 else own.measured["pr"][10:]
        pr = np.sort(pr[np.isfinite(pr)])
        found = next(one for one in made["medians"] if one["title"] == "PR")["groups"][group]
        assert found["median"] == np.median(pr) and found["known"] == len(pr) < len(chosen)
        below = (pr < found["low"]).sum(), (pr > found["high"]).sum()
        assert binom.cdf(max(below), len(pr), 0.5) < 0.05 and found["low"] < found["high"]


def test_the_average_beat_peaks_at_the_qrs_complex_in_every_lead(
    client: httpx.Client, own: Session
) -> None:
    made = client.post("/api/groups/beats", json={"codes": list(own.codes[:6])}).json()
    assert made["unit"] == "mV" and made["patients"] == made["of"] == 6
    times = made["start"] + np.arange(len(made["leads"][0]["mean"])) / made["rate"]
    by_lead = {one["lead"]: one for one in made["leads"]}
    assert set(own.stores[own.datasets[0]].leads) == set(by_lead)
    steepest = times[np.abs(np.diff(by_lead["II"]["mean"], append=0.0)[:-1]).argmax()]
    assert abs(steepest) < 0.08
    single = [beats_of(own.recording(code, 0))["II"] for code in own.codes[:6]]
    np.testing.assert_allclose(by_lead["II"]["mean"], np.mean(single, axis=0), atol=1e-3)
    for low, mean, high in zip(*(by_lead["II"][k] for k in ("low", "mean", "high")), strict=True):
        assert low <= mean <= high
