"""Opening: paths and wishes -> a session, with everything that can be cached from the cache.

Knows nothing about HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clocs.cli.progress import bar
from clocs.errors import CheckpointError, SettingError
from clocs.explorer.material import Distances, embed_all, expect_file, patient_distances
from clocs.explorer.patient_map import Projection
from clocs.explorer.pseudonyms import key_of
from clocs.explorer.session import Session
from clocs.files import cache_folder, seed_files, sha256_of
from clocs.patients.embeddings import Embeddings
from clocs.store.store import Store, open_store

if TYPE_CHECKING:
    from rich.console import Console

DEMO_PATIENTS = 300
_REPORTS = ("report/index.html", "index.html")  # in the runs, or a report's own folder


def open_session(
    *,
    stores: Sequence[Path] = (),
    checkpoint: Path | None = None,
    embeddings: Path | None = None,
    runs: Path | None = None,
    cache: Path | None = None,
    show_ids: bool = False,
    split_seed: int = 0,
    console: Console,
) -> Session:
    """A session on these stores and this encoder; on the demo's where nothing is given.

    Args:
        stores: Prepared recordings.
        checkpoint: The encoder; a folder stands for its first seed.
        embeddings: Made by `clocs embed --level patient`, instead of encoding the stores.
        runs: A folder with a report.
        cache: For what is computed; the system's place by default.
        show_ids: Whether patients go by their own IDs.
        split_seed: Of the split by patient.
        console: For progress.
    """
    cache = cache or cache_folder()
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    report = find_report(runs) if runs is not None else None
    title = ""
    if not stores and checkpoint is None and embeddings is None:
        store, checkpoint = demo_material(cache / "demo", console)
        stores, title = [store], "simulated patients"
    opened = {}
    for path in stores:
        one = open_store(path)
        if one.manifest.dataset in opened:
            raise SettingError(f"{path} is a second store of {one.manifest.dataset}; give one")
        opened[one.manifest.dataset] = one
    file = seed_files(checkpoint)[0] if checkpoint is not None else None
    made, distances = _material(embeddings, file, list(opened.values()), cache, split_seed, console)
    for name, words in made.problems:
        console.print(f"{name}: {words}", markup=False)
    if not len(made):
        raise SettingError(
            f"nobody of {embeddings or ', '.join(opened)} has a direction, so there is nothing to "
            "show; give another encoder"
        )
    if file is not None and sha256_of(file) != made.encoder:
        raise CheckpointError(
            f"{embeddings} was made by another encoder than {file}: an upload could not be placed "
            "among its patients; give the encoder that made it, or none"
        )
    projection = Projection(made.vectors, cache)
    return Session(
        embeddings=made,
        projection=projection,
        distances=distances,
        stores=opened,
        key=key_of(cache),
        checkpoint=file,
        report=report,
        show_ids=show_ids,
        title=title or ", ".join(opened) or (embeddings.stem if embeddings else ""),
    )


def _material(
    embeddings: Path | None,
    checkpoint: Path | None,
    stores: Sequence[Store],
    cache: Path,
    split_seed: int,
    console: Console,
) -> tuple[Embeddings, Distances]:
    if embeddings is not None:
        if checkpoint is not None:
            expect_file(checkpoint)
        made = Embeddings.load(embeddings)
        return made, patient_distances(made.vectors)
    if checkpoint is None or not stores:
        raise SettingError(
            "an explorer needs --checkpoint and --store together, or --embeddings; with no "
            "arguments at all it shows the demo's"
        )
    with _bars(console) as progress:
        return embed_all(checkpoint, stores, cache, split_seed=split_seed, progress=progress)


@contextmanager
def _bars(console: Console) -> Iterator[Any]:
    """A bar a store, made when its encoding begins."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def begin(store: Store) -> Any:
            words = f"Encoding {store.manifest.dataset}"
            if not console.is_terminal:
                console.print(f"{words} ({len(store):,} recordings) …")
            return stack.enter_context(bar(console, words, "recordings"))

        yield begin


def demo_material(folder: Path, console: Console) -> tuple[Path, Path]:
    """The demo's store and encoder, made where `clocs demo --out` would make them; once."""
    store = folder / f"store-{DEMO_PATIENTS}"
    encoder = folder / f"encoders-{DEMO_PATIENTS}" / "cmsc"
    if not (store / "manifest.json").is_file() or not (encoder / "seed-0.safetensors").is_file():
        import clocs
        from clocs.cli.progress import training
        from clocs.experiments import demo

        folder.mkdir(parents=True, exist_ok=True)
        with bar(console, f"Simulating {DEMO_PATIENTS} patients", "recordings") as progress:
            clocs.prepare("synthetic", out=store, patients=DEMO_PATIENTS, progress=progress)
        epochs = demo.PRETRAINING.epochs
        with training(console, "Learning an encoder without labels", epochs) as watch:
            clocs.pretrain(
                store,
                method="cmsc",
                out=encoder,
                seeds=demo.SEEDS,
                settings=demo.PRETRAINING,
                resume=True,
                on_step=watch.step,
                on_epoch=watch.epoch,
            )
    return store, encoder


def find_report(runs: Path) -> Path:
    """The page that `clocs report` wrote into a folder of runs."""
    if runs.is_file() and runs.suffix == ".html":
        return runs
    for name in _REPORTS:
        if (runs / name).is_file():
            return runs / name
    raise SettingError(f"{runs} holds no report; make one with `clocs report {runs}`")
