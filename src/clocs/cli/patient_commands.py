"""What the commands about patients, the servers and the demo do with what was typed."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clocs.cli import tables
from clocs.cli.console import Answer, Call, bar, err, say_now
from clocs.cli.console import out as console
from clocs.errors import SettingError

if TYPE_CHECKING:
    import polars as pl
    from rich.console import RenderableType


def embed(
    call: Call,
    *,
    out: str = "embeddings.parquet",
    split: Literal["train", "validation", "test", "all"] = "all",
) -> Answer:
    """Print how many vectors were written.

    Args:
        out: Parquet file to write.
        split: Part of the stores, by patient.
    """
    from clocs.patients.embeddings import expect_replaceable
    from clocs.patients.encode import counted_notes, note_lines
    from clocs.store.manifest import MANIFEST

    expect_replaceable(Path(out))
    with bar("Embedding", "recordings") as progress:
        made = call(split=None if split == "all" else split, progress=progress)
    files = any(not (Path(source) / MANIFEST).is_file() for source in call.given["sources"])
    if len(made):
        made.save(Path(out))
    elif not made.problems and not made.only_zeros:
        raise SettingError(f"the split {split} has no patient; give another `split`")
    count = made.rows.select("dataset", "patient").n_unique()
    notes = counted_notes(made.rows)
    names = ("level", "dim", "leads", "encoder", "zero_vectors", "only_zeros", "problems")
    facts = {"file": out if len(made) else None, "vectors": len(made), "patients": count}
    facts |= {name: getattr(made, name) for name in names} | {"notes": notes}
    shown = [
        f"{_counted(len(made), 'vector')} of {made.dim} dimensions, one per {made.level}, from "
        f"{_counted(count, 'patient')}.",
        *_leads_and_zeros(made, call),
        *note_lines(notes, "recordings or patients"),
        *([f"Written to {out}."] if len(made) else []),
    ]
    failed = not len(made) or (files and made.problems)
    return Answer(facts, shown, made.problems, code=int(bool(failed)))


def measure(call: Call) -> Answer:
    """Print what was measured, or draw one recording."""
    from clocs.figures.canvas import SUFFIXES
    from clocs.patients.encode import counted_notes, note_lines

    file = call.given.get("out")
    if file is not None and Path(file).suffix.lower() in SUFFIXES:
        return _draw_marks(call, Path(file))
    with bar("Measuring", "recordings") as progress:
        made = call(progress=progress)
    usable, problems = tables.readable(made)
    shown = [] if file else tables.first_rows(usable, _measurements_table)
    kind = "wave" if call.given.get("waves") else "recording"
    notes = note_lines(counted_notes(made), "of the recordings")
    shown += [f"{_counted(usable.height, kind)} measured.", *notes]
    shown += [f"Written to {file}."] if file else []
    facts = {"file": file, "rows": made.to_dicts() if call.as_json and file is None else []}
    return Answer(facts, shown, problems, code=int(bool(problems)))


def _draw_marks(call: Call, file: Path) -> Answer:
    """Draw the only recording, or the one that is named."""
    from clocs.errors import ClocsError
    from clocs.figures.canvas import save
    from clocs.figures.ecg import measured_paper
    from clocs.files import private_folder
    from clocs.formats.base import ReadOptions
    from clocs.models.measure import measure_each

    given = dict(call.given)
    if given.pop("waves", False):
        raise SettingError("a drawing has all marks; leave out `waves`")
    options = {name: given[name] for name in ("rate", "unit", "lead_names") if name in given}
    found = measure_each(given["sources"], ReadOptions(**options), given.get("recording"))
    one = next(found)
    if next(found, None) is not None:
        raise SettingError("a drawing is of one recording; name it with `recording`")
    if isinstance(one.found, ClocsError) or one.recording is None:
        raise SettingError(f"nothing to draw: {one.found}")
    private_folder(file.parent)
    save(measured_paper(one.recording, one.found), file)
    return Answer({"file": str(file), **one.found.to_dict()}, [f"The drawing is {file}."])


def _measurements_table(rows: pl.DataFrame) -> RenderableType:
    """One row per recording: medians of beats, or why there are none; or one row per wave."""
    shown: list[tuple[Any, ...]] = []
    if "wave" in rows.columns:
        names = ("lead", "wave", "onset", "peak", "offset")
        for row in rows.iter_rows(named=True):
            shown.append((row["recording"] or row["file"], *(row[name] for name in names)))
        return tables.grid("Waves, in s", ("recording", *names), shown)
    heads = {"beats/min": "heart_rate", "PR": "pr", "QRS": "qrs", "QT": "qt"}
    heads |= {"QTc": "qtc_bazett", "axis": "qrs_axis"}
    for row in rows.iter_rows(named=True):
        values = [row[name] if row[name] is None else round(row[name]) for name in heads.values()]
        own = (row[f"{name}_reason"] for name in heads.values())
        why = "; ".join(dict.fromkeys(filter(None, own)))
        shown.append((row["recording"] or row["file"], *values, why))
    caption = "Medians of beats, in ms and degrees; QTc by Bazett; --json and --out have the rest"
    return tables.grid("", ("recording", *heads, "why not"), shown, caption=caption)


def index(call: Call, *, out: str = "index") -> Answer:
    """Print what is in the index.

    Args:
        out: Folder of the index.
    """
    with bar("Embedding", "recordings") as progress:
        done = call(out=out, progress=progress)
    counts = [
        f"{_counted(total, level)}, searched by {done.kind[level]} search."
        for level, total in done.total.items()
    ]
    from clocs.store.store import open_store

    first = open_store(call.given["stores"][0])
    one = shlex.quote(f"{first.manifest.dataset}:{first.table['patient'][0]}")
    following = f"Index written to {out}. Next: clocs similar {shlex.quote(out)} --patient {one}"
    shown = [*counts, *_leads_and_zeros(done, call), following]
    return Answer({"index": out, **vars(done)}, shown, done.problems)


def similar(call: Call) -> Answer:
    """Print the neighbors."""
    given = call.given
    level, query = given.get("level", "patient"), given.get("patient") or given.get("file")
    found = call()
    ids = ["dataset", "patient", "recording"][: 3 if level == "recording" else 2]
    rows = found.select(*ids, "labels", "age", "sex", "split", "distance", "euclidean")
    shown: list[Any] = [
        tables.grid(
            f"Nearest to {query}", rows.drop("split").columns, rows.drop("split").iter_rows()
        )
    ]
    shown += [] if rows.height else ["No other patient of the index passes."]
    facts = {"query": str(query), "level": level, "neighbors": rows.to_dicts()}
    return Answer(facts, shown)


def explore(call: Call, *, token: str = "new") -> None:
    """Print the address.

    Args:
        token: Secret that visitors must present; 'new' generates one, 'none' lets in every user of
            this machine.
    """
    stages = ExitStack()
    show = stages.enter_context(bar("Opening", ""))

    def opened(url: str, session: Any) -> None:
        stages.close()
        for note in session.notes():
            err.print(note)
        if call.as_json:
            facts = {"url": url, "patients": len(session.embeddings), "datasets": session.datasets}
            say_now(facts)
        else:
            console.print(f"The explorer is running at {url}  (press Ctrl-C to stop)")

    with stages:
        call(
            token=None if token == "none" else token,
            progress=lambda stage, done, total: show(done, total, stage),
            on_open=opened,
        )
    err.print("The explorer has stopped.")


def demo(call: Call, *, out: str = "demo", patients: int = 300) -> Answer:
    """Print the table of scores, and where the page is.

    Args:
        out: Folder for everything it makes.
        patients: Number of simulated patients, at least 30.
    """
    if patients < 30:
        raise SettingError(f"`patients` must be at least 30, not {patients}")
    result = call(folder=Path(out), patients=patients, stage=_stage)
    words = (
        f"Done in {result.seconds:.0f} s. Open {result.page} in a browser.\n"
        f"Its patients on a map, with their ECGs:\n  {result.explore}\n"
        f"Next, with real recordings:\n"
        "  clocs prepare chapman ECGDataDenoised.zip --out stores/chapman\n"
        "  clocs pretrain stores/chapman --method cmsc --seeds 5 --out runs/chapman-cmsc\n"
        "  clocs evaluate runs/chapman-cmsc stores/chapman --fraction 0.5"
    )
    return Answer(result.json(), [tables.demo_table(result), words])


@contextmanager
def _stage(title: str) -> Iterator[None]:
    """Show a stage while it lasts, then how long it took."""
    began = time.perf_counter()
    with err.status(title + " …") if err.is_terminal else ExitStack():
        yield
    err.print(f"{title}: {time.perf_counter() - began:.1f} s")


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _leads_and_zeros(made: Any, call: Call) -> list[str]:
    """The leads, and what has zero vectors."""
    why = "" if "leads" in call.given else ", those the encoder was trained on"
    lines = [f"Leads: {', '.join(made.leads or ())}{why}."]
    if made.zero_vectors:
        lines.append(f"{made.zero_vectors:,} frames × leads have a zero vector and are left out.")
    for dataset, patient, recording in made.only_zeros:
        name = f"{dataset}:{patient}" + (f", recording {recording}" if recording else "")
        lines.append(f"  {name} has zero vectors only and is left out.")
    return lines


def serve(call: Call, *, token: str = "new") -> None:
    """Print the address and the token.

    Args:
        token: Secret that clients must send; 'new' generates one, 'none' lets in every user of
            this machine.
    """

    def ready(url: str, own: str | None) -> None:
        if call.as_json:
            say_now({"url": url, "token": own})
            return
        console.print(f"The service is ready at {url}  (press Ctrl-C to stop)")
        if own is not None:
            console.print(f"Send the header  Authorization: Bearer {own}")
        console.print(f"To try an ECG in a browser, open  {url}/{f'?token={own}' if own else ''}")

    call(token=None if token == "none" else token, on_ready=ready)
    err.print("The service has stopped.")
