"""What each command does with what was typed: call its Python function, and answer.

One function per command. Its keywords are options beside those of the Python function; what else
was typed is in `call`, which calls that function.
"""

from __future__ import annotations

import inspect
import json
import re
import shlex
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

import clocs
from clocs.cli import tables
from clocs.cli.console import Answer, Call, bar, err, out, training
from clocs.cli.messages import in_options, print_json, print_problems, silent
from clocs.cli.patient_commands import (
    demo,
    embed,
    explore,
    index,
    measure,
    serve,
    similar,
)
from clocs.errors import SettingError, distinct

if TYPE_CHECKING:
    from clocs.datasets.download import Publication

_LISTED = ("title", "page", "version", "license", "size", "citation", "next")
ELSEWHERE = (demo, embed, explore, index, measure, serve, similar)
UNFINISHED = 3  # exit code: no error, but not everything is done
_MAX_TABLES = 4  # of results, that are printed; a report has all
_WIDE = 120  # columns of a terminal that has room for all that is known of a model


def execute(command: click.Command, given: dict[str, Any], *, as_json: bool) -> int:
    """Run a command with what was typed, print its answer, and return its exit code."""
    action = globals()[str(command.name)]
    own = {
        name
        for name, one in inspect.signature(action).parameters.items()
        if one.kind is one.KEYWORD_ONLY
    }
    module, name = command.function  # type: ignore[attr-defined]
    function = getattr(import_module(module), name)
    rest = {name: value for name, value in given.items() if name not in own}
    call = Call(command, function, rest, as_json)
    answer = action(call, **{name: value for name, value in given.items() if name in own})
    if answer is None or silent():
        return 0
    if as_json:
        print_json(answer.facts)
    else:
        for one in answer.shown:
            out.print(one)
    print_problems(answer.problems, command)
    return int(answer.code)


def _refuse(given: Iterable[str], known: Container[str], why: str) -> None:
    """Refuse options that were typed and have no effect here."""
    if refused := ", ".join(f"`{name}`" for name in sorted(given) if name not in known):
        raise SettingError(f"{why}; leave out {refused}")


def download(
    call: Call, *, name: str = "", out: str | None = None, dry_run: bool = False
) -> Answer:
    """Print what was downloaded, or all datasets where none is named.

    Args:
        name: Name of the dataset; without one, all are listed.
        out: Folder for its files; data/NAME by default.
        dry_run: Show what would be downloaded, and write nothing.
    """
    from clocs.datasets.download import PUBLICATIONS, plan_download

    if not name:
        facts = [_publication(one) for one in PUBLICATIONS.values()]
        none = {"license": "none named by the publisher"}
        shown = [one if one["license"] else one | none for one in facts]
        return Answer(facts, [tables.words_table(one["name"], one, _LISTED) for one in shown])
    target = out or str(Path("data", name))
    following = f"clocs prepare {name} {target} --out stores/{name}"
    if dry_run:
        plan = plan_download(name, **call.given)
        files = [asdict(file) for file in plan.files]
        planned = _publication(plan.publication)
        planned |= {"out": target, "size": plan.size, "files": files}
        size = f", about {plan.size / 1e6:,.1f} MB" if plan.size else ""
        words = f"{len(files):,} files{size} would go into {target}; --json lists them."
        return Answer(planned, [words])
    with bar(f"Downloading {name}", "") as progress:
        done = call(name=name, out=target, progress=progress)
    one = PUBLICATIONS[name]
    unnamed = "The publisher names no license: ask before you use or share the data."
    terms = f"License: {one.license}." if one.license else unnamed
    return Answer(
        asdict(done) | {"folder": str(done.folder), "next": following},
        [
            f"{done.files:,} files are in {done.folder}, all verified; {done.fetched:,} are new "
            f"({done.received / 1e6:,.1f} MB).",
            f"{terms} Please cite: {one.citation}",
            f"Next: {following}",
        ],
    )


def _publication(one: Publication) -> dict[str, Any]:
    return asdict(one) | {"next": f"clocs download {one.name}"}


def prepare(call: Call, *, out: str = "store", dry_run: bool = False) -> Answer:
    """Print what is in the store, or what was understood of the source.

    Args:
        out: Folder of the store.
        dry_run: Show what would be read, and write no store.
    """
    from clocs.formats.addresses import parse_path_or_url

    if dry_run:
        return _preview(call, out)
    with bar(f"Preparing {call.given['name']}", "recordings") as progress:
        made = call(out=out, progress=progress)
    from clocs.models.describe import store_facts

    facts, where = store_facts(made), parse_path_or_url(out)
    following = f"clocs pretrain {shlex.quote(str(where))} --method cmsc --out runs/cmsc"
    words = f"\nThe store is {where}. Next: {following}"
    return Answer(facts, [tables.store_tables(facts, where), words])


def _preview(call: Call, out: str) -> Answer:
    """What was understood, and the command that does it."""
    typed = dict(call.given)
    name, source = typed.pop("name"), typed.pop("source", None)
    ours = inspect.signature(call.function).parameters
    known = ("workers", "follow_links")
    facts = clocs.preview(
        name, source, **{key: typed[key] for key in typed if key in known or key not in ours}
    )
    words = ["clocs", "prepare", name, *([source] if source else []), "--out", out]
    for key, value in typed.items():
        words += [f"--{key.replace('_', '-')}", *([] if value is True else [str(value)])]
    facts["command"] = shlex.join(words)
    facts["notices"] = [in_options(notice, call.command) for notice in facts["notices"]]
    for one in facts["problems"]:
        one["examples"] = [in_options(example, call.command) for example in one["examples"]]
    following = [f"Next: {facts['command']}"] if facts["examples"] else []  # else it would fail
    return Answer(facts, [tables.preview_tables(facts), *following])


def info(call: Call, *, verbose: bool = False) -> Answer:
    """Print what is in a store, a checkpoint, a classifier or an index, or the list of models.

    Args:
        verbose: List every recording in quarantine; of a model, print the whole card in Markdown.
    """
    if "path" not in call.given:
        from clocs.models.model_card import shipped_models

        listed = shipped_models()
        more = "More about one: clocs info NAME --verbose"
        return Answer(listed, [tables.models_table(listed, all_columns=out.width >= _WIDE), more])
    with bar("Verifying", "recordings") as progress:
        kind, facts = call(progress=progress)
    cards = facts if isinstance(facts, list) else [facts]
    if verbose and kind in ("encoder", "classifier"):
        from clocs.models.describe import model_page

        name, text = model_page(call.given["path"])
        return Answer({"name": name, "card": text}, [text.rstrip("\n")])
    if kind == "store":
        shown = [tables.store_tables(facts, call.given["path"], verbose=verbose)]
    elif kind == "index":
        shown = [tables.words_table(f"Index {facts['index']}", facts, tables.FACTS["index"])]
    elif kind == "classifier":
        more = f"All about it: clocs info {call.given['path']} --verbose"
        shown = [tables.scores_tables(facts, facts["scores"]), more]
    else:
        shown = [tables.words_table("", card, tables.FACTS["card"]) for card in cards]
    if call.given.get("verify"):
        shown.append("Verified: everything is as it was written.")
    return Answer(facts, shown)


def pretrain(call: Call) -> Answer:
    """Print how each seed ended."""
    from torch import Tensor

    from clocs.models.describe import card_facts

    given, folder = call.given, Path(call.given["out"])
    title = f"Pre-training {given.get('method', 'cmsc')}"
    with training(title, given.get("epochs")) as watch:
        made = call(**watch)
    cards = [
        card_facts(one.card, sum(map(Tensor.numel, one.weights.values())), len(one.recordings))
        for one in made
    ]
    if silent():
        return Answer(cards)
    trained = sorted({file.parent for file in folder.rglob("seed-*.safetensors")})[0]
    words = ["clocs", "evaluate", str(trained), given["store"][0]]
    words += ["--leads", ",".join(given["leads"])] if "leads" in given else []
    following = f"\nThe checkpoints are in {folder}. Next: {shlex.join(words)}"
    return Answer(cards, [tables.cards_summary(cards), following])


def figure(call: Call) -> Answer:
    """Print where the figure is, and what it shows."""
    with bar("Drawing", "") as progress:
        facts, report = call(progress=progress)
    title = f"{facts.get('method')} on {facts.get('store')}"
    shown = [] if report is None else [tables.words_table(title, report.json())]
    return Answer(facts, [*shown, f"The figure is {facts['file']}."])


def evaluate(
    call: Call,
    *,
    protocol: str = "linear",
    label_names: Mapping[str, str] | None = None,
    plots: str | None = None,
    predictions: str | None = None,
) -> Answer:
    """Print scores, and draw them.

    Args:
        protocol: How encoders are scored: 'linear', 'linear-converged', 'attentive', 'finetune' or
            'knn' with labels; 'retrieval': does a search find the same patient, and the same
            diagnosis?
        label_names: What labels of the store are called in a classifier, such as AFIB=AF,SR=N.
        plots: Folder for ROC and calibration curves and confusion matrices, PNG.
        predictions: Folder for all test predictions (safetensors).
    """
    from clocs.training.card import is_classifier

    given = dict(call.given)
    checkpoints, store = given.pop("checkpoint"), given.pop("store")
    if any(map(is_classifier, checkpoints)):
        typed = {"protocol": protocol != "linear", "plots": plots, "predictions": predictions}
        refused = given | {name: value for name, value in typed.items() if value}
        known = inspect.signature(clocs.evaluate_classifier).parameters
        _refuse(refused, known, "a saved classifier is scored without training")
        return _evaluate_classifier(checkpoints, store, label_names, given)
    if label_names is not None:
        raise SettingError("`label_names` is for classifiers; leave it out")
    if protocol == "retrieval":
        allowed = ("leads", "seconds", "split_seed", "device")
        _refuse(given, allowed, "the search is scored without training")
        frame = given.pop("seconds", None)
        with bar("Scoring", "encoders") as progress:
            scores = clocs.retrieval(checkpoints, store, frame=frame, progress=progress, **given)
        return Answer([one.json() for one in scores], [tables.retrieval_table(scores)])
    if given.get("folds", "").isdigit():
        given["folds"] = int(given["folds"])
    with training("Evaluating", given.get("epochs")) as watch:
        scored = clocs.evaluate_many(
            checkpoints, store, protocol=protocol, on_epoch=watch["on_epoch"], **given
        )
    names = distinct([one.evaluation.name for one in scored])
    files = [re.sub(r"[^\w.-]+", "-", name).strip("-") for name in names]
    if predictions is not None:
        from clocs.files import private_folder

        private_folder(Path(predictions))
        for name, one in zip(files, scored, strict=True):
            one.predictions.save(Path(predictions) / f"{name}.safetensors")
    drawn = [] if plots is None else _draw(files, scored[: len(checkpoints)], Path(plots))
    results = [one.evaluation for one in scored]
    facts = [result.json() for result in results]
    notes = [f"The figures are in {plots}: {', '.join(drawn)}."] if drawn else []
    if len(checkpoints) == 1:
        return Answer(facts[0], [tables.evaluation_table(results[0], results[1:]), *notes])
    shown = [tables.evaluations_table(results), *tables.verdicts(results)]
    return Answer(facts, [*shown, *notes])


def _draw(names: Sequence[str], scored: Sequence[Any], folder: Path) -> list[str]:
    from clocs.figures import scores
    from clocs.figures.canvas import save

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, one in zip(names, scored, strict=False):
        for kind, draw in scores.FIGURES.items():
            written.append(f"{name}-{kind}.png")
            save(draw(one.predictions), folder / written[-1])
    return written


def _evaluate_classifier(
    classifiers: list[str],
    store: str,
    label_names: Mapping[str, str] | None,
    given: dict[str, Any],
) -> Answer:
    """The scores of a saved classifier on the test patients of a store."""
    from clocs.models.classifier import load_classifier

    if len(classifiers) > 1:
        raise SettingError("a classifier is evaluated alone; give one, and the store")
    loaded = load_classifier(classifiers[0])
    scores = clocs.evaluate_classifier(loaded, store, label_names=label_names, **given)
    return Answer(scores, [tables.scores_tables(loaded.card.to_dict(), scores)])


def reproduce(
    call: Call,
    *,
    names: Sequence[str] = (),
    dry_run: bool = False,
    report: str | None = None,
    fill: Sequence[str] = (),
) -> Answer:
    """Print how far the runs are, what they would cost, or where the report is.

    Args:
        names: What to run: table-1, table-2, table-1-splits, table-2-splits, table-1-12,
            table-2-12, ablations, factorial, forms, label-efficiency,
            linear-converged, more-with-less, patient-distances, perturbations, byol-decay,
            embedding-dim, labelled-fraction, appendix-linear, appendix-transfer or all; or
            report, which writes what is done as one page, Markdown tables and JSON, beside the
            paper's numbers.
        dry_run: List what is done, what would run and which data it needs; nothing is written.
        report: With the name report: its folder; in the folder of runs by default.
        fill: With the name report: Markdown file whose parts between <!-- clocs:NAME --> and
            <!-- /clocs --> are brought up to date.
    """
    given, runs = call.given, call.given["out"]
    if names == ["report"]:
        from clocs.experiments.agreement import sentences
        from clocs.experiments.report import COVERAGE

        page = clocs.report(runs, report, earlier=given.get("known", ()), fill=fill)
        counts = json.loads((page.parent / COVERAGE).read_text(encoding="utf-8"))
        files = sorted(str(path) for path in page.parent.iterdir())
        facts = {"page": str(page), "files": files, "coverage": counts}
        return Answer(facts, [*sentences(counts), f"The report is {page}."])
    if report or fill:
        raise SettingError("`report` and `fill` go with the name report alone")
    if dry_run:
        from clocs.experiments.estimate import estimate

        said = ("out", "stores", "known", "dataset", "seeds", "only")
        found = estimate(names, **{name: given[name] for name in said if name in given})
        return Answer(found.json(), found.lines())
    with bar("Reproducing", "runs") as advance:

        def show(message: str, done: int, total: int) -> None:
            err.print(f"[{done}/{total}] {message}")
            advance(done, total)

        status = call(names=names, on_progress=show)
    folders = [Path(one) for one in (runs, *given.get("known", ()))]
    made = [] if call.as_json else tables.result_tables(names, given.get("only", ()), folders)
    words = f"{status}. Next: clocs reproduce report --out {runs}"
    code = 0 if status.complete else UNFINISHED
    return Answer(asdict(status), [*made[:_MAX_TABLES], words], code=code)


def finetune(call: Call, *, out: str) -> Answer:
    """Print the scores of the classifier.

    Args:
        out: File to write, NAME.safetensors. An interrupted training is kept beside it, in a folder
            that ends in .training.
    """
    with training("Fine-tuning", call.given.get("epochs")) as watch:
        card = call(out=out, on_epoch=watch["on_epoch"]).card
    again = shlex.join(["clocs", "evaluate", out, call.given["store"]])
    words = f"\nThe classifier is in {out}. To print these scores again: {again}"
    return Answer(card.to_dict(), [tables.scores_tables(card.to_dict(), card.scores), words])


def calibrate(call: Call, *, out: str) -> Answer:
    """Print how calibration and abstention change on held-out patients of the site.

    Args:
        out: File to write, NAME.safetensors; never that of MODEL.
    """
    report = call(out=out).card.training["calibration"]
    heads = ("patients learned from", "accuracy", "ECE", "±", "kept", "error of kept", "of others")
    names = ("patients", "accuracy", "ece", "ece_sd", "coverage", "error_kept", "error_abstained")
    rows = [[one[name] for name in names] for one in report["held_out"]]
    about = f"{report['recordings_left_out']:,} recordings have no label of the classifier."
    title = f"{report['recordings']:,} recordings of {report['dataset']}, held out"
    words = f"\nThe classifier is in {out}. Next: clocs predict {shlex.quote(out)} RECORDINGS"
    return Answer(report, [tables.grid(title, heads, rows, caption=about), words])


def predict(
    call: Call,
    *,
    explain: str | None = None,
    label: str | None = None,
    start: float | None = None,
    recording: str | None = None,
    split: Literal["train", "validation", "test", "all"] = "all",
) -> Answer:
    """Print what was predicted, or explain one prediction.

    Args:
        explain: Draw which part of one recording drove its prediction, on ECG paper: a file .png,
            .svg, .pdf or, in numbers, .json. Orange speaks for the label, blue against it.
        label: With `explain`: the label to explain; the most probable one by default.
        start: With `explain`: second at which the 10 s to explain begin; by default where most
            speaks for the label.
        recording: With `explain`: which recording of a store, or of a file that holds several.
        split: Part of the stores, by patient.
    """
    if explain is not None:
        return _explain(call, Path(explain), label=label, start=start, recording=recording)
    if refused := [n for n, v in (("label", label), ("start", start)) if v is not None]:
        raise SettingError(f"`{refused[0]}` goes with `explain`; give it too")
    from clocs.models.classifier import as_classifier
    from clocs.patients.encode import counted_notes, note_lines

    file = call.given.get("out")
    classifier = as_classifier(call.given["model"])
    with bar("Predicting", "recordings") as progress:
        part = None if split == "all" else split
        made = call(model=classifier, split=part, progress=progress)
    if not made.height:
        raise SettingError(f"the split {split} has no recording; give another `split`")
    usable, problems = tables.readable(made)
    drawn = partial(tables.predictions_table, in_words=partial(in_options, command=call.command))
    shown = [] if file else tables.first_rows(usable, drawn)
    shown.append(tables.predicted_summary(made))
    shown += note_lines(counted_notes(made), "of the recordings")
    meanings = classifier.card.meanings
    shown += [words] if (words := tables.label_meanings(made, meanings)) else []
    shown += [f"Written to {file}."] if file else []
    # a stretch without a signal is no fault of the file, nor is a flat recording one of its store
    failed = not usable.height or not set(made["file"].drop_nulls()) <= set(usable["file"])
    facts = {"file": file, "labels": meanings, "rows": made.to_dicts() if call.as_json else []}
    return Answer(facts, shown, problems, code=int(failed))


def _explain(call: Call, file: Path, **options: Any) -> Answer:
    """Write which part of one recording drove its prediction."""
    kinds = (".png", ".svg", ".pdf", ".json")
    if file.suffix.lower() not in kinds:
        raise SettingError(f"`explain` is {file}; give a name that ends in {', '.join(kinds)}")
    given = dict(call.given)
    model, sources = given.pop("model"), given.pop("sources")
    if len(sources) > 1:
        raise SettingError("`explain` is of one recording; give one file or store")
    _refuse(given, inspect.signature(clocs.explain).parameters, "`explain` needs one recording")
    made = clocs.explain(model, sources[0], **given, **options)
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix.lower() == ".json":
        from clocs.files import write_atomic

        write_atomic(file, json.dumps(made.to_dict(), allow_nan=False).encode())
    else:
        from clocs.figures.canvas import save
        from clocs.figures.ecg import explanation_paper

        save(explanation_paper(made), file)
    facts = {k: v for k, v in made.to_dict().items() if k != "attribution"}
    abstains = f"The classifier abstains ({made.abstained}). " if made.abstained else ""
    words = f"{made.recording.id}: {made.label}, probability {made.probability:.2f}. {abstains}"
    return Answer({"file": str(file)} | facts, [f"{words}The explanation is {file}."])


def export(
    call: Call,
    *,
    to: Literal["onnx", "onnx-int8", "torch", "hub", "frames"],
    seconds: float | None = None,
    rate: float | None = None,
    leads: Sequence[str] | None = None,
    step: float | None = None,
) -> Answer:
    """Print what was written.

    Args:
        to: What to write: 'onnx', 'onnx-int8' (weights of 8 bits), 'torch' (for torch.export.load)
            or 'hub' (Hugging Face) of a model; 'frames' of a store, given in place of MODEL, for
            machines without polars.
        seconds: With frames: duration of a frame; the dataset's own by default.
        rate: With frames: rate of a frame in Hz; the dataset's own by default.
        leads: With frames: leads to save, such as I,II; all by default.
        step: With frames: size of a step of the signals, in mV; coarser ones make smaller files.
    """
    cut: dict[str, Any] = {"seconds": seconds, "rate": rate, "leads": leads, "step": step}
    cut = {name: value for name, value in cut.items() if value is not None}
    given = call.given
    if to == "frames":
        from clocs.experiments.data import save_frames

        _refuse(given, ("model", "out"), "frames are of a store")
        with bar("Cutting frames", "files") as progress:
            store, folder = Path(given["model"]), Path(given["out"])
            written = save_frames(store, folder, progress=progress, **cut)
        return Answer({"files": [*map(str, written)]}, [f"Wrote {path}." for path in written])
    _refuse(cut, (), "the frames of a model are fixed")
    found = call(to=to)
    facts = {"path": given["out"], "difference": None if found is None else asdict(found)}
    shown = [f"Written: {given['out']}"]
    if found is not None:
        shown.append(
            f"Greatest difference on {found.recordings} recordings: {found.to_module:.1e} to the "
            f"module in torch, {found.to_package:.1e} to this package's own output"
        )
    return Answer(facts, shown)
