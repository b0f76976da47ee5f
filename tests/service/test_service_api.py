"""The endpoints, over HTTP."""

from __future__ import annotations

import io
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

import clocs
import unhurried
from clocs import Checkpoint, Recording
from clocs.models.classifier import Classifier
from clocs.patients.embed import embed_each, embed_recordings
from clocs.patients.encode import InputSpec, cut_each
from clocs.recording import STANDARD_LEADS
from clocs.service import api
from clocs.service.bodies import Limits, example_body
from clocs.service.service import Service
from service.conftest import TOKEN, Served, as_json, as_npy, serving
from upload_files import csv_file, wfdb_files

schemathesis = pytest.importorskip("schemathesis")
from schemathesis.specs.openapi.checks import response_schema_conformance  # noqa: E402

schema = schemathesis.openapi.from_dict(api.make_api(Service()).openapi())
TURN = itertools.count()


@schema.parametrize()  # type: ignore[untyped-decorator]
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_makes_the_service_fail(case: Any, served: Served) -> None:
    if case.path_parameters and next(TURN) % 3:
        case.path_parameters["name"] = "rhythm"  # random names would never be a model's
    answer = case.call(base_url=served.url)
    assert answer.status_code < 500
    if answer.status_code >= 400:
        assert answer.json()["message"]
    else:
        case.validate_response(answer, checks=(response_schema_conformance,))


def test_every_endpoint_is_described_with_examples(served: Served) -> None:
    described = unhurried.get(f"{served.url}/openapi.json").json()
    models = ("/models/{name}/embedding", "/models/{name}/prediction")
    posts = (*models, "/neighbors", "/measurements")
    gets = ("/health", "/ready", "/metrics", "/models")
    assert set(described["paths"]) == {*posts, *gets}
    for path in posts:
        content = described["paths"][path]["post"]["requestBody"]["content"]
        kinds = ("json", "x-npy", "x-npz")
        assert set(content) == {*(f"application/{one}" for one in kinds), "multipart/form-data"}
        assert all(one["examples"] for one in content.values())
        for example in content["application/json"]["examples"].values():
            answer = served.post(path.replace("{name}", "rhythm"), json=example["value"])
            assert answer.status_code == 200, answer.text


def test_an_embedding_is_that_of_the_file(
    served: Served, checkpoint: Checkpoint, recordings: list[Recording]
) -> None:
    one = recordings[0]
    expected = embed_recordings(checkpoint, [one]).vectors[0]
    pair = [("files", (name, data)) for name, data in wfdb_files(one).items()]
    as_file = served.post("/models/plain/embedding", files=pair)
    assert as_file.status_code == 200
    np.testing.assert_array_equal(np.float32(as_file.json()["embedding"]), expected)
    as_list = served.embedding(as_json(one))
    query = {"rate": str(one.rate), "leads": ",".join(one.leads), "unit": "mV"}
    kind = {"content-type": "application/x-npy"}
    as_array = served.post(
        "/models/plain/embedding", params=query, content=as_npy(one.signal), headers=kind
    )
    # floats are rounded to steps of 0.1 µV, not to those of the file
    np.testing.assert_allclose(as_list.json()["embedding"], expected, atol=1e-4)
    assert as_array.json() == as_list.json()


def test_a_csv_with_its_rate_is_read_and_a_broken_file_is_refused(
    served: Served, recordings: list[Recording]
) -> None:
    listed = [("files", ("own.csv", csv_file(recordings[0])))]
    rate = {"rate": str(recordings[0].rate), "unit": "µV"}
    assert served.post("/models/plain/embedding", files=listed, data=rate).status_code == 200
    asked = served.post("/models/plain/embedding", files=listed)
    assert asked.status_code == 422 and asked.json()["rate_question"] is True
    assert "own does not say its sampling rate; give it in Hz as" in asked.json()["message"]
    broken = served.post("/models/plain/embedding", files=[("files", ("own.hea", b"\xff"))])
    assert broken.status_code == 422
    assert "own.hea" in broken.json()["message"]


def test_a_form_holds_as_many_recordings_as_a_request_may(
    served: Served, recordings: list[Recording]
) -> None:
    """As WFDB pairs, one of which is damaged; the field may be called `file`, too."""
    pairs = [wfdb_files(recordings[n % 12], f"r{n:02}") for n in range(64)]
    pairs[5]["r05.dat"] = b""
    listed = [
        (("files", "file")[n % 2], one) for n, pair in enumerate(pairs) for one in pair.items()
    ]
    answer = served.post("/models/plain/embedding", files=listed)
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert [one["name"] for one in results] == [f"r{n:02}" for n in range(64)]
    assert "r05" in results[5]["message"] and "embedding" not in results[5]
    alone = served.post(
        "/models/plain/embedding", files=[("file", one) for one in pairs[7].items()]
    )
    assert alone.json()["embedding"] == results[7]["embedding"]
    more = served.post("/models/plain/embedding", files=[*listed, ("file", ("x.csv", b"II\n1\n"))])
    assert more.status_code == 422 and "Too many files" in more.json()["message"]
    other = served.post("/models/plain/embedding", files=listed[:2], data={"lead": "II"})
    assert other.status_code == 422 and "has a field 'lead'" in other.json()["message"]


def test_sixty_four_ecgs_of_twelve_leads_fit_into_one_body_as_json_with_all_digits(
    served: Served,
) -> None:
    signal = np.random.default_rng(0).normal(0, 0.3, (12, 5000)).tolist()
    one = json.dumps({"signal": signal, "rate": 500, "leads": list(STANDARD_LEADS)})
    body = f'{{"recordings": [{", ".join([one] * 64)}]}}'
    kind = {"content-type": "application/json"}
    answer = served.post("/models/plain/embedding", content=body, headers=kind)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["results"]) == 64


def test_arrays_with_their_names_are_read_as_npz(
    served: Served, recordings: list[Recording]
) -> None:
    file, one = io.BytesIO(), recordings[0]
    signal = np.stack([one.signal for one in recordings[:3]])
    np.savez(file, signal=signal, rate=one.rate, leads=np.array(one.leads), unit="mV")
    kind = {"content-type": "application/x-npz"}
    given = {"content": file.getvalue(), "headers": kind}
    answer = served.post("/models/plain/embedding", **given)
    assert answer.status_code == 200, answer.text
    alone = [served.embedding(as_json(one)).json() for one in recordings[:3]]
    assert answer.json()["results"] == alone
    form = [("files", ("own.npz", file.getvalue()))]
    assert len(served.post("/models/plain/embedding", files=form).json()["results"]) == 3
    pickled = io.BytesIO()
    np.savez(pickled, signal=np.array([{"a": 1}], dtype=object))
    refused = served.post("/models/plain/embedding", content=pickled.getvalue(), headers=kind)
    assert refused.status_code == 422 and "Python objects" in refused.json()["message"]


def test_a_batch_has_one_result_per_recording_in_order(
    served: Served, recordings: list[Recording]
) -> None:
    alone = [served.embedding(as_json(one)).json() for one in recordings[:3]]
    bodies = [as_json(one) for one in recordings[:3]]
    short = as_json(replace(recordings[3], digital=recordings[3].digital[:, :50]))
    made = served.embedding({"recordings": [bodies[0], short, *bodies[1:]]})
    assert made.status_code == 200
    first, problem, *others = made.json()["results"]
    assert [first, *others] == alone
    assert problem["message"].startswith("too short: recording 1 has 50 samples")
    stacked = as_npy(np.stack([one.signal for one in recordings[:3]]).astype(np.float64))
    arrays = served.post(
        "/models/plain/embedding",
        params={
            "rate": str(recordings[0].rate),
            "leads": ",".join(recordings[0].leads),
            "unit": "mV",
        },
        content=stacked,
        headers={"content-type": "application/x-npy"},
    )
    assert arrays.json()["results"] == alone


def test_requests_computed_together_get_what_they_get_alone(
    served: Served, recordings: list[Recording]
) -> None:
    bodies = [as_json(one.select(["II"])) for one in recordings[:8]]
    alone = [served.embedding(body).json() for body in bodies]

    def batches() -> float:
        text = unhurried.get(f"{served.url}/metrics").text
        (line,) = [n for n in text.splitlines() if n.startswith("clocs_batch_recordings_count")]
        return float(line.split()[1])

    before = batches()
    with ThreadPoolExecutor(24) as pool:
        together = list(pool.map(lambda body: served.embedding(body).json(), bodies * 5))
    assert together == alone * 5
    assert batches() - before < 5 * len(bodies)  # some of them were computed together


def test_an_encoder_of_many_leads_gives_the_same_bits_in_every_batch(
    recordings: list[Recording],
) -> None:
    encoder = clocs.load("cmsmlc-many-leads")
    assert isinstance(encoder, Checkpoint)
    threads = torch.get_num_threads()
    for torch_threads in (1, 2):
        torch.set_num_threads(torch_threads)
        spec = InputSpec.from_checkpoint(encoder)
        together = embed_each(cut_each(recordings, spec), spec)
        for some in (1, 2, 5):
            few = embed_each(cut_each(recordings[:some], spec), spec)
            np.testing.assert_array_equal(few, together[:some])
    torch.set_num_threads(threads)


def test_a_prediction_is_that_of_predict(
    served: Served,
    classifier: Classifier,
    recordings: list[Recording],
    tmp_path: Path,
) -> None:
    for name, data in wfdb_files(recordings[1]).items():
        (tmp_path / name).write_bytes(data)
    (expected,) = clocs.predict(classifier, tmp_path / "own.hea").to_dicts()
    listed = [("files", (name, data)) for name, data in wfdb_files(recordings[1]).items()]
    made = served.post("/models/rhythm/prediction", files=listed).json()
    assert made["probabilities"] == {k: expected[f"p({k})"] for k in classifier.card.labels}
    for name in ("predicted", "abstained", "ecg_share", "distance"):
        assert made[name] == expected[name]
    assert made["predicted"] in classifier.card.labels


def test_measurements_are_those_of_the_file_and_need_no_model(
    served: Served, recordings: list[Recording]
) -> None:
    files = wfdb_files(recordings[1])
    made = served.post("/measurements", files=[("files", one) for one in files.items()])
    assert made.json() == clocs.measure(recordings[1]).to_dict()
    short = served.post("/measurements", json=as_json(recordings[1].between(0, 100)))
    assert short.status_code == 422 and "2 s are needed" in short.json()["message"]


def test_a_prediction_beyond_the_limits_abstains_with_the_reason(
    classifier: Classifier, recordings: list[Recording]
) -> None:
    strict = replace(classifier, card=replace(classifier.card, limits={"1": {"ecg_share": 2.0}}))
    with serving(lambda service: service.load([strict])) as served:
        made = served.post("/models/rhythm/prediction", json=as_json(recordings[0])).json()
        assert made["predicted"] is None
        assert made["abstained"].startswith("too noisy: ")
        assert sum(made["probabilities"].values()) == pytest.approx(1)


def test_neighbors_are_those_of_similar_and_nameless(
    served: Served,
    index: Path,
    recordings: list[Recording],
    tmp_path: Path,
) -> None:
    pair = wfdb_files(recordings[0])
    for name, data in pair.items():
        (tmp_path / name).write_bytes(data)
    expected = clocs.similar(index, file=tmp_path / "own.hea", k=5)
    listed = [("files", (name, data)) for name, data in pair.items()]
    found = served.post("/neighbors?k=5", files=listed).json()["neighbors"]
    assert [one["distance"] for one in found] == pytest.approx(expected["distance"].to_list())
    assert [one["labels"] for one in found] == expected["labels"].to_list()
    own = served.post("/neighbors?k=5&level=recording", files=listed).json()["neighbors"]
    assert len(own) == 5
    for one in (*found, *own):
        assert one.keys() == {"dataset", "labels", "distance", "euclidean"}


def test_ids_of_neighbors_are_shown_on_request(index: Path, recordings: list[Recording]) -> None:
    with serving(lambda service: service.load([], index), show_ids=True) as served:
        found = served.post("/neighbors?level=recording", json=as_json(recordings[0]))
        assert all(one["patient"] and one["recording"] for one in found.json()["neighbors"])
        for k in ("0", "101", "0000000019999999", "1" * 5000, "١"):
            refused = served.post(f"/neighbors?k={k}", json=as_json(recordings[0]))
            assert refused.status_code == 422 and "`k`" in refused.json()["message"]


def test_models_come_with_their_cards(served: Served, checkpoint: Checkpoint) -> None:
    plain, rhythm = unhurried.get(f"{served.url}/models").json()["models"]
    assert (plain["name"], plain["kind"]) == ("plain", "encoder")
    assert plain["card"]["weights_sha256"] and plain["leads"] == ["II", "V2", "aVL", "aVR"]
    assert (rhythm["name"], rhythm["labels"]) == ("rhythm", ["AF", "N", "O"])
    assert rhythm["card"]["temperature"] == [2.0, 2.0, 2.0]


ECG = example_body()


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "the JSON is not as expected"),
        (b"[]", "Expected `object`"),
        (b'{"signal": [["a"]], "rate": 500}', "Expected `float | null`, got `str`"),
        (b'{"rate": 500}', "`signal` and `rate`, or a list of `recordings`"),
        (b'{"signal": [], "rate": 500}', "the recording has no samples"),
        (b'{"signal": [[1, 2], [1]], "rate": 500}', "leads of different lengths"),
        (b'{"signal": [[1, 2]], "rate": 5}', "a sampling rate of 5 Hz"),
        (b'{"signal": [[1, 2]], "rate": 500, "extra": 1}', "unknown field `extra`"),
        (b'{"recordings": []}', "send 1 to 64 recordings at once, not 0"),
        ({**ECG, "leads": ["V9"]}, "none of the leads that the model takes (II, V2, aVL, aVR)"),
        ({**ECG, "leads": ["II", "V2"]}, "names 2 leads and holds 1"),
        ({**ECG, "unit": "stone"}, "`unit` is 'stone'"),
        ({**ECG, "signal": [[0.0] * 500]}, "constant in every lead"),
        ({**ECG, "signal": [[None] * 500]}, "no value in any lead"),
        ({**ECG, "signal": [[1e6, 0.0] * 250]}, "implausible"),
        ({**ECG, "signal": [ECG["signal"][0][:100]]}, "too short: the recording has 100 samples"),
    ],
)
def test_a_recording_that_cannot_be_used_gets_422_and_a_sentence(
    served: Served, body: bytes | dict[str, Any], sentence: str
) -> None:
    kind = {"content-type": "application/json"}
    given: dict[str, Any] = {"json": body} if isinstance(body, dict) else {"content": body}
    answer = served.post("/models/plain/embedding", headers=kind, **given)
    assert answer.status_code == 422
    assert sentence in answer.json()["message"]


def test_nothing_that_is_sent_is_ignored(served: Served) -> None:
    for more in ({"unit": "µV"}, {"rate": 250}, {"leads": ["II"]}, {"signal": [[0.0]]}):
        refused = served.post("/models/plain/embedding", json={"recordings": [ECG], **more})
        assert refused.status_code == 422 and "give nothing else" in refused.json()["message"]


def test_arrays_that_cannot_be_used_get_422_and_a_sentence(served: Served) -> None:
    kind = {"content-type": "application/x-npy"}
    whole = as_npy(np.zeros((1, 500)))
    for content, query, sentence in (
        (whole, "", "?rate=500"),
        (b"no array", "?rate=500", "cannot be read as a NumPy array"),
        (whole[:-8], "?rate=500", "truncated"),
        (as_npy(np.zeros((1, 1, 1, 5))), "?rate=500", "4 axes"),
        (as_npy(np.array([["a"]])), "?rate=500", "not numbers"),
    ):
        answer = served.post(f"/models/plain/embedding{query}", content=content, headers=kind)
        assert answer.status_code == 422, answer.text
        assert sentence in answer.json()["message"]


def test_an_array_that_claims_to_be_huge_takes_no_memory(served: Served) -> None:
    huge = as_npy(np.zeros((1, 500))).replace(b"(1, 500), ", b"(9999999999,500),")
    kind = {"content-type": "application/x-npy"}
    answer = served.post("/models/plain/embedding?rate=500", content=huge, headers=kind)
    assert answer.status_code == 422


def test_what_is_not_there_is_404_and_what_is_no_ecg_is_415(served: Served) -> None:
    missing = served.post("/models/other/embedding", json=ECG)
    assert missing.status_code == 404
    assert "those served: plain, rhythm" in missing.json()["message"]
    encoder = served.post("/models/plain/prediction", json=ECG)
    assert encoder.status_code == 404 and "predicts no classes" in encoder.json()["message"]
    text = {"content-type": "text/plain"}
    assert served.post("/models/plain/embedding", content=b"x", headers=text).status_code == 415
    with serving(lambda service: service.load([], None)) as bare:
        answer = bare.post("/neighbors", json=ECG)
        assert answer.status_code == 404 and "no index is served" in answer.json()["message"]


def test_gaps_are_null_and_cost_their_frames_alone(served: Served) -> None:
    signal = ECG["signal"][0] * 2  # 20 s
    whole = served.embedding({**ECG, "signal": [signal]}).json()["embedding"]
    holed = [*signal[:5], None, *signal[6:]]
    first_frame_lost = served.embedding({**ECG, "signal": [holed]}).json()["embedding"]
    assert len(first_frame_lost) == len(whole)


def test_bodies_recordings_and_seconds_are_limited(files: list[str]) -> None:
    limits = Limits(mebibytes=1, recordings=2, seconds=15.0)
    with serving(lambda service: service.load(files), limits=limits) as served:
        large = served.embedding({**ECG, "signal": [[0.123456789] * 200_000]})
        assert large.status_code == 413
        assert "larger than 1 MiB; send fewer or shorter recordings" in large.json()["message"]
        many = served.embedding({"recordings": [ECG] * 3})
        assert many.status_code == 422 and "1 to 2 recordings" in many.json()["message"]
        long = served.embedding({**ECG, "signal": [ECG["signal"][0] * 2]})
        assert long.status_code == 422 and "send at most 15 s" in long.json()["message"]


def test_nothing_but_probes_is_answered_without_the_token(files: list[str]) -> None:
    with serving(lambda service: service.load(files), token=TOKEN) as served:
        for path in ("/health", "/ready"):
            assert unhurried.get(served.url + path).status_code == 200
        for path in ("/models", "/metrics", "/openapi.json", f"/models?token={TOKEN}"):
            refused = unhurried.get(served.url + path)
            assert refused.status_code == 401
            assert "Authorization: Bearer" in refused.json()["message"]
        assert served.embedding(ECG).status_code == 401
        known = {"authorization": f"Bearer {TOKEN}"}
        assert served.post("/models/plain/embedding", json=ECG, headers=known).status_code == 200


def test_the_description_says_how_the_token_is_sent_and_what_needs_none(served: Served) -> None:
    described = unhurried.get(f"{served.url}/openapi.json").json()
    assert described["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert described["security"] == [{"token": []}]
    without = {
        path for path, one in described["paths"].items() if one.get("get", {}).get("security") == []
    }
    assert without == {"/health", "/ready"}


def test_metrics_count_requests_recordings_and_batches(served: Served) -> None:
    served.embedding(ECG)
    served.embedding({**ECG, "leads": ["V9"]})
    unhurried.get(f"{served.url}/made/up")
    text = unhurried.get(f"{served.url}/metrics").text
    for line in (
        'clocs_requests_total{endpoint="/models/{name}/embedding",status="200"}',
        'clocs_requests_total{endpoint="/models/{name}/embedding",status="422"}',
        'clocs_requests_total{endpoint="none",status="404"}',
        'clocs_recordings_total{endpoint="embedding",outcome="answered"}',
        'clocs_recordings_total{endpoint="embedding",outcome="unusable"}',
        'clocs_request_seconds_bucket{endpoint="/models/{name}/embedding",le="0.1"}',
        "clocs_batch_recordings_count",
        "clocs_queue_seconds 0.0",
        "clocs_ready 1.0",
    ):
        assert f"\n{line}" in text
    assert "/made/up" not in text  # paths that clients make up are not kept
