from __future__ import annotations

import csv
import io
import itertools
import re
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings

import clocs.web
import unhurried
from clocs.explorer import server
from clocs.explorer.session import Session
from clocs.service import api
from clocs.web.packing import unpack
from clocs.web.shield import BODY_LIMIT
from explorer.conftest import Served

schemathesis = pytest.importorskip("schemathesis")
from schemathesis.specs.openapi.checks import response_schema_conformance  # noqa: E402
from schemathesis.specs.openapi.coverage import _schema as coverage  # noqa: E402

# What no enumeration here lists. To find such values, it would turn down thousands for seconds, in
# every worker, as requests are made up when tests are collected.
coverage._invalid_enum_candidates = cache(lambda: ("", "0", None, False, -0.5))

# The description needs no session: it is not used before the first request.
schema = schemathesis.openapi.from_dict(server.make_api(cast("Session", None)).openapi())


SHARED = Path(clocs.web.__file__).parent / "static"
TURN = itertools.count()
# These take the same body, a list of pseudonyms.
GROUPS = "^/api/groups/"


@schema.exclude(path_regex=GROUPS).parametrize()  # type: ignore[untyped-decorator]
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_endpoint_fails_on_valid_or_invalid_requests(case: Any, served: Served) -> None:
    expect_no_failure(case, served)


@schema.include(path_regex=GROUPS).parametrize()  # type: ignore[untyped-decorator]
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_endpoint_of_groups_fails_either(case: Any, served: Served) -> None:
    expect_no_failure(case, served)


def expect_no_failure(case: Any, served: Served) -> None:
    code = served.session.codes[0]
    if case.path_parameters and "/patients/" in case.path and next(TURN) % 3:
        case.path_parameters["code"] = code  # random codes would never be a patient's
    answer = case.call(base_url=served.url)
    assert answer.status_code < 500
    if answer.status_code >= 400 and answer.headers["content-type"] == "application/json":
        assert answer.json()["message"]
    if answer.status_code < 300:
        case.validate_response(answer, checks=(response_schema_conformance,))


def test_the_description_lists_every_endpoint(session: Session) -> None:
    paths = server.make_api(session).openapi()["paths"]
    assert {
        "/api/session",
        "/api/map",
        "/api/positions",
        "/api/projection",
        "/api/columns",
        "/api/distances",
        "/api/names",
        "/api/patients/{code}",
        "/api/patients/{code}/recordings/{number}/signal",
        "/api/patients/{code}/recordings/{number}/beats",
        "/api/patients/{code}/recordings/{number}/measurements",
        "/api/patients/{code}/recordings/{number}/predictions",
        "/api/patients/{code}/recordings/{number}/explanation",
        "/api/patients/{code}/distances/{other}",
        "/api/patients/{code}/neighbors",
        "/api/patients/{code}/neighbors.csv",
        "/api/quality",
        "/api/quality/{code}",
        "/api/runs",
        "/api/runs/log",
        "/api/uploads",
        "/api/uploads/{code}",
        "/api/uploads/{code}/signal",
        "/api/uploads/{code}/beats",
        "/api/uploads/{code}/measurements",
        "/api/uploads/{code}/predictions",
        "/api/uploads/{code}/explanation",
        "/api/cohorts",
        "/api/cohorts/{name}",
        "/api/groups/comparison",
        "/api/groups/beats",
        "/api/groups/table",
    } == set(paths)


def test_errors_are_json_with_a_message(served: Served) -> None:
    code = served.session.codes[0]
    for path, status in (
        ("/api/patients/0000000000", 404),
        ("/api/patients/nobody", 422),
        (f"/api/patients/{code}/recordings/99/signal", 404),
        (f"/api/patients/{code}/recordings/0/signal?lead=V99", 422),
        (f"/api/patients/{code}/recordings/0/signal?seconds=inf", 422),
        (f"/api/patients/{code}/neighbors?k=0", 422),
        ("/api/uploads/0000000000000000", 404),
        ("/api/nothing", 404),
    ):
        answer = unhurried.get(served.url + path)
        assert answer.status_code == status, path
        assert answer.json()["message"]
    assert unhurried.put(f"{served.url}/api/session").status_code == 405


def test_the_map_contains_every_patient_once(served: Served) -> None:
    facts, arrays = unpack(unhurried.get(f"{served.url}/api/map").content)
    n = len(served.session.embeddings)
    assert arrays["positions"].shape == (n, 2)
    assert {bytes(code).hex() for code in arrays["codes"]} == set(served.session.codes)
    assert all(len(array) == n for array in arrays.values())
    assert facts["projection"]["state"] == "ready"


def test_neighbors_are_the_same_in_json_and_csv(served: Served) -> None:
    session = served.session
    code = session.codes[2]
    near = unhurried.get(f"{served.url}/api/patients/{code}/neighbors?k=5").json()
    assert len(near["neighbors"]) == 5
    answer = unhurried.get(f"{served.url}/api/patients/{code}/neighbors.csv?k=5")
    assert "attachment" in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["code"] for row in rows] == [n["code"] for n in near["neighbors"]]


def test_the_histogram_integrates_to_one(served: Served) -> None:
    h = unhurried.get(f"{served.url}/api/distances").json()
    width = h["edges"][1] - h["edges"][0]
    for kind in ("intra", "inter"):
        assert sum(h[kind]) * width == pytest.approx(1, abs=1e-2)
    assert 0 <= h["separability"] <= 1


def test_the_page_preloads_all_its_modules() -> None:
    static = Path(server.__file__).parent / "static"
    page = (static / "index.html").read_text(encoding="utf-8")
    for file in [*static.glob("*.js"), *SHARED.glob("*.js")]:
        assert f'"/static/{file.name}"' in page, file.name


def test_the_page_loads_nothing_from_elsewhere() -> None:
    static = Path(server.__file__).parent / "static"
    served = Path(api.__file__).parent / "static"
    for file in (*static.iterdir(), *SHARED.iterdir(), *served.iterdir()):
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//cdn|@import", text), file.name
        if file.suffix == ".html":
            assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*src=)", text)
        assert "innerHTML" not in text and "eval(" not in text


def test_the_page_states_the_actual_limits() -> None:
    static = Path(server.__file__).parent / "static"
    page = (static / "index.html").read_text(encoding="utf-8")
    script = (static / "upload.js").read_text(encoding="utf-8")
    assert f"up to {BODY_LIMIT >> 20} MiB" in " ".join(page.split())
    assert f"{BODY_LIMIT >> 20} * 2 ** 20" in script
    assert "accept=" not in page  # files are recognized by their content, whatever their names
