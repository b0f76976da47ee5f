"""Open a session: stores, an encoder or embeddings, with whatever is cached read from the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clocs.datasets.pseudonyms import key_of
from clocs.errors import CheckpointError, SettingError
from clocs.experiments.demo import DEMO, demo_store_and_encoder, finished_demo
from clocs.explorer.columns import unpredicted
from clocs.explorer.embed_stores import embed_stores, reference_distances
from clocs.explorer.measured import measured_patients
from clocs.explorer.patient_map import Projection
from clocs.explorer.predictions import SavedClassifiers
from clocs.explorer.session import OtherMap, Session, in_order_of_pseudonyms
from clocs.explorer.training_runs import run_folders
from clocs.files import cache_folder, private_cache, seed_files, sha256_of
from clocs.patients.embeddings import Embeddings, expect_distinct
from clocs.store.store import Store, as_store
from clocs.training.card import weights_path

if TYPE_CHECKING:
    from clocs.models.classifier import Classifier

_ABOVE = 4  # folders in which an encoder's report is looked for


def open_session(
    *,
    stores: Sequence[Store | Path] = (),
    checkpoint: Path | None = None,
    others: Sequence[Path] = (),
    embeddings: Path | None = None,
    models: Sequence[Classifier | Path | str] = (),
    runs: Path | None = None,
    cache: Path | None = None,
    show_ids: bool = False,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> Session:
    """A session for these stores and this encoder, or the demo's; see `clocs.explore`."""
    cache = cache or cache_folder()
    private_cache(cache)
    report = find_report(runs) if runs is not None else None
    saved = SavedClassifiers(models) if models else None
    title = ""
    if not stores and checkpoint is None and embeddings is None:
        found = finished_demo(DEMO)  # as `clocs demo` left it, here
        store, checkpoint = found or demo_store_and_encoder(cache / "demo", progress=progress)
        stores, title = [store], "Demo with simulated ECGs"
    opened: dict[str, Store] = {}
    for given in stores:
        one = as_store(given)
        if one.manifest.dataset in opened:
            raise SettingError(f"{one.path} is a second store of {one.manifest.dataset}; give one")
        opened[one.manifest.dataset] = one
    file = None if checkpoint is None else _weights(checkpoint)
    if others and (embeddings is not None or not opened):
        raise SettingError("a second `checkpoint` needs `stores`, and no `embeddings`")
    further = [_weights(one) for one in others]
    if embeddings is not None:
        patients, distances = Embeddings.load(embeddings), None
    elif file is not None and opened:
        patients, distances = embed_stores(file, list(opened.values()), progress=progress)
    else:
        raise SettingError(
            "the explorer needs both `checkpoint` and `stores`, or `embeddings`; with no arguments "
            "it shows the demo"
        )
    patients = patients.nonzero()
    if not len(patients):
        raise SettingError(
            f"no patient of {embeddings or ', '.join(opened)} has an embedding, so there is "
            "nothing to show; give another encoder"
        )
    if file is not None and sha256_of(file) != patients.encoder:
        raise CheckpointError(
            f"{embeddings} was made by a different encoder from {file}, so uploads could not be "
            "compared with its patients; give the encoder that made it, or none"
        )
    expect_distinct(patients.rows, patients.level)
    key = key_of(cache)
    beside = next((store.path for store in opened.values()), None) or embeddings or Path()
    patients, codes = in_order_of_pseudonyms(patients, key)
    seen = []
    for given_as, weights in zip(others, further, strict=True):
        vectors, _ = embed_stores(weights, list(opened.values()), progress=progress)
        seen.append(other_map(given_as.name, vectors, patients, cache))
    measured, note = measured_patients(patients.rows, opened)
    return Session(
        embeddings=patients,
        codes=codes,
        projection=Projection(patients.vectors, cache),
        distances=distances or reference_distances(patients.vectors),
        stores=opened,
        key=key,
        measured=measured,
        remarks=[*filter(None, (note, unpredicted(opened, saved)))],
        others=seen,
        encoder=checkpoint.name if checkpoint is not None else "",
        checkpoint=file,
        models=saved,
        cohorts=beside.parent / "cohorts",
        report=report if report is not None else report_beside(file),
        runs=next((one for one in (runs, file and file.parent) if one and run_folders(one)), None),
        show_ids=show_ids,
        title=title or ", ".join(opened) or (embeddings.stem if embeddings else ""),
    )


def _weights(checkpoint: Path) -> Path:
    """The file of an encoder's first seed."""
    file = seed_files(weights_path(checkpoint))[0]
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist; give a checkpoint made by `clocs pretrain`")
    return file


def other_map(name: str, found: Embeddings, patients: Embeddings, cache: Path) -> OtherMap:
    """The map of another encoder's vectors, in the order of the session's patients."""
    keys, found = ["dataset", "patient"], found.nonzero()
    places = found.rows.select(keys).with_row_index("place")
    each = patients.rows.select(keys).join(places, on=keys, how="left", maintain_order="left")
    rows = np.flatnonzero(each["place"].is_not_null())
    vectors = found.vectors[each["place"].drop_nulls().to_numpy()]
    return OtherMap(name, Projection(vectors, cache), rows)


def find_report(runs: Path) -> Path | None:
    """The page of a report in a folder of runs; None where it holds trainings."""
    if runs.is_file() and runs.suffix == ".html":
        return runs
    for name in ("report/index.html", "index.html"):  # in a folder of runs, or a report's own
        if (runs / name).is_file():
            return runs / name
    if run_folders(runs):
        return None
    raise SettingError(
        f"{runs} contains neither a training nor a report; create one with "
        f"`clocs reproduce report --out {runs}`"
    )


def report_beside(checkpoint: Path | None) -> Path | None:
    """The report of the runs that an encoder is one of, or the demo's page; None without one."""
    for folder in [] if checkpoint is None else list(checkpoint.resolve().parents)[:_ABOVE]:
        for page in (folder / "report" / "index.html", folder / "index.html"):
            with suppress(OSError), page.open("rb") as file:
                if b"<title>clocs: the " in file.read(1000):
                    return page
    return None
