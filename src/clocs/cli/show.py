"""The commands `clocs show …`: parse, draw, save; the figures are in `clocs.figures`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clocs.cli import console
from clocs.cli.options import Json, Leads, SplitSeed, figure_name, names_of
from clocs.errors import SettingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from clocs.recording import Recording
    from clocs.store.store import Store

app = typer.Typer(
    name="show",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Draw what the methods do: perturbations, views and similarities.",
)


StorePath = Annotated[Path, typer.Argument(help="Store made by `clocs prepare`.")]
Out = Annotated[
    Path, typer.Option(help="Figure to write: .png, .svg or .pdf.", callback=figure_name)
]
RecordingId = Annotated[
    str | None,
    typer.Option("--recording", help="Recording ID; by default the first that is long enough."),
]


@app.command(epilog="Example: clocs show perturbations chapman --out perturbations.png")
def perturbations(
    store: StorePath,
    out: Out = Path("perturbations.png"),
    recording: RecordingId = None,
    lead: Annotated[
        str | None, typer.Option(help="Lead to draw; the first of the default leads.")
    ] = None,
    perturb: Annotated[
        list[str] | None,
        typer.Option(
            help='Chain such as "gaussian>sa_t"; repeatable; the paper\'s five by default.'
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed for the perturbations.", min=0)] = 68,
    as_json: Json = False,
) -> None:
    """Draw a frame, each perturbation of it and their spectrograms (the paper's appendix B)."""
    from clocs.figures.methods import APPENDIX_B, first_frame, show_perturbations
    from clocs.store.store import open_store

    opened = open_store(store)
    name = lead or opened.choose_leads()[0]
    spec = opened.manifest.frame
    chosen = _recording(opened, recording, [name], spec.seconds)
    figure = show_perturbations(
        first_frame(chosen, spec, name),
        spec,
        chains=perturb or APPENDIX_B,
        amplitude=chosen.unit,
        title=f"A recording, lead {name}",
        seed=seed,
    )
    _finish(figure, out, as_json, recording=chosen.id, lead=name, seed=seed)


@app.command(epilog="Example: clocs show views chapman --out views.png")
def views(
    store: StorePath,
    out: Out = Path("views.png"),
    recording: RecordingId = None,
    leads: Leads = None,
    as_json: Json = False,
) -> None:
    """Draw how CMSC, CMLC and CMSMLC take views of one recording (the paper's figure 1)."""
    from clocs.figures.methods import show_views
    from clocs.frames.views import frame_for
    from clocs.store.store import open_store

    opened = open_store(store)
    names = opened.choose_leads(names_of(leads))
    seconds = max(n * frame_for(opened.manifest, segments=n).seconds for n in (1, 2))
    chosen = _recording(opened, recording, names, seconds)
    figure = show_views(chosen, dataset=opened.manifest, leads=names)
    _finish(figure, out, as_json, recording=chosen.id, leads=list(names))


@app.command(
    epilog="Example: clocs show similarity chapman --checkpoint runs/chapman-cmsc --out batch.png"
)
def similarity(
    store: StorePath,
    checkpoint: Annotated[
        Path, typer.Option(help="Checkpoint file, or a folder for its first seed.")
    ],
    out: Out = Path("similarity.png"),
    method: Annotated[
        str | None, typer.Option(help="cmsc, cmlc or cmsmlc; the checkpoint's method by default.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Number of instances.", min=2, max=64)] = 16,
    seed: Annotated[int, typer.Option(help="Random seed for the batch.", min=0)] = 0,
    split_seed: SplitSeed = 0,
    as_json: Json = False,
) -> None:
    """Draw the similarities of a batch of test patients (the paper's figure 2)."""
    from clocs.figures.methods import show_similarity
    from clocs.frames.make import make_frames
    from clocs.frames.views import frame_for
    from clocs.pretraining.methods import METHODS, find_method
    from clocs.recording import with_derived
    from clocs.store.store import open_store
    from clocs.training.checkpoint import load_checkpoint

    loaded, opened = load_checkpoint(checkpoint), open_store(store)
    own = METHODS.get(loaded.card.method)
    several = own is not None and (own.views.all_leads or own.views.segments > 1)
    name = method or (loaded.card.method if several else "cmsc")
    spec = frame_for(opened.manifest, segments=find_method(name).views.segments)
    with console.err.status("Cutting frames …"):
        has_all = set(loaded.card.leads) <= set(with_derived(opened.leads))
        leads = loaded.card.leads if has_all else None
        frames = make_frames(opened, spec=spec, leads=leads, split_seed=split_seed)
    figure = show_similarity(loaded, frames, method=name, batch=batch, seed=seed)
    facts = {"method": name, "batch": batch, "seed": seed, "leads": list(frames.leads)}
    _finish(figure, out, as_json, **facts)


def _recording(store: Store, which: str | None, leads: Sequence[str], seconds: float) -> Recording:
    """The recording with this ID, or the first with these leads that is long enough."""
    if which is not None:
        return store.recording(which)
    lasts = (store.table["samples"] / store.table["rate"]).to_numpy()
    for row in store.rows_with(leads):
        if lasts[row] >= seconds - 1e-6:
            return store.recording(int(row))
    raise SettingError(
        f"{store.path} has no recording of {seconds:g} s or more with {', '.join(leads)}; "
        "choose other leads"
    )


def _finish(figure: Figure, out: Path, as_json: bool, **facts: Any) -> None:
    from clocs.figures.canvas import save

    out.parent.mkdir(parents=True, exist_ok=True)
    save(figure, out)
    if as_json:
        console.print_json({"file": str(out), **facts})
    else:
        console.out.print(f"The figure is {out}.", markup=False)
