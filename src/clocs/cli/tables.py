"""Tables in the terminal: stores, models, scores, predictions and patients."""

from __future__ import annotations

import math
import shlex
import tomllib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from clocs.errors import distinct

if TYPE_CHECKING:
    import polars as pl

    from clocs.evaluation.result import Evaluation
    from clocs.experiments.demo import Demo
    from clocs.patients.retrieval import Retrieval


@dataclass(frozen=True)
class Whole:
    """A table that breaks no word: columns as wide as their longest words or wider.

    Where a terminal is too narrow for that, each row is printed as lines of its own, which the
    terminal may break where it likes, but which can still be copied.

    Attributes:
        title: Above it.
        heads: Of columns; none of a table of facts, with their names in its first column.
        rows: Their cells.
        numbers: Columns of numbers, which are aligned to the right.
        caption: Below it.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str | Text]]
    numbers: Container[int] = ()
    caption: str | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [self.heads, *self.rows] if self.heads else self.rows
        cells = [[_text(console, cell) for cell in row] for row in lines]
        columns = list(zip(*cells, strict=True))
        words = [[word for cell in column for word in cell.plain.split()] for column in columns]
        least = [max(map(cell_len, own), default=0) for own in words]
        wanted = [max(cell.cell_len for cell in column) for column in columns]
        least[0] = wanted[0]  # the names of all others
        left = options.max_width - 3 * len(columns) - 1 - sum(least)
        if left < 0:
            yield from self._one_by_one(cells)
            return
        table = Table(
            title=self.title, title_justify="left", caption=self.caption,
            show_header=bool(self.heads),
        )  # fmt: skip
        for number, (low, high) in enumerate(zip(least, wanted, strict=True)):
            later = sum(wanted[number:]) - sum(least[number:])
            width = low + min(high - low, left * (high - low) // max(later, 1))
            left -= width - low
            justify: Literal["right", "left"] = "right" if number in self.numbers else "left"
            head = cells[0][number] if self.heads else ""
            table.add_column(head, justify=justify, width=width)
        for row in cells[bool(self.heads) :]:
            table.add_row(*row)
        yield table

    def _one_by_one(self, cells: Sequence[Sequence[Text]]) -> RenderResult:
        if self.title:
            yield Text(self.title, "italic")
        names = cells[0] if self.heads else ()
        wide = max(name.cell_len for name in names or [row[0] for row in cells]) + 2
        for row in cells[bool(self.heads) :]:
            if not self.heads:
                yield _beside(row[0], row[1], wide)
                continue
            yield row[0]
            yield from (
                _beside(name, cell, wide) for name, cell in zip(names[1:], row[1:], strict=True)
            )
        if self.caption:
            yield Text(self.caption, "italic")


def _text(console: Console, cell: str | Text) -> Text:
    return cell if isinstance(cell, Text) else console.render_str(cell)


def _beside(name: Text, cell: Text, wide: int) -> Text:
    return Text.assemble("  ", name, " " * (wide - name.cell_len), cell)


def words_table(title: str, facts: Mapping[str, Any], names: Sequence[str] = ()) -> Whole:
    """Facts in words, those of these names, or all; without those that are None or empty."""
    rows = [
        (name.replace("_", " "), said(facts[name], inside=False))
        for name in names or facts
        if facts.get(name) not in (None, "", [], (), {})
    ]
    return Whole(title, (), rows)


def said(value: Any, *, inside: bool = True) -> str:
    """A value in words; facts `inside` of others in parentheses."""
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.4g}"
        case dict():
            words = ", ".join(f"{k} {said(v)}" for k, v in value.items()).replace("_", " ")
            return f"({words})" if inside else words
        case list() | tuple():
            return ", ".join(said(one, inside=inside) for one in value) or "none"
        case _:
            return "none" if value is None else str(value)


PARTS = ("train", "validation", "test")
_COUNTED = ("patients", "recordings", "frames")
_MAX_NAMED, _MAX_ROWS = 4, 20
_SHOWN = tomllib.loads(Path(__file__).with_name("tables.toml").read_text("utf-8"))
SHOWN = 40  # rows of a table in the terminal
FACTS, _NOTES = _SHOWN["facts"], _SHOWN["notes"]


def grid(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[Any]], *, caption: str | None = None
) -> Whole:
    """A table: columns of numbers to the right, others to the left; long texts are wrapped."""
    rows = list(rows)
    numbers = {
        number
        for number, (_, *cells) in enumerate(zip(heads, *rows, strict=True))
        if all(isinstance(one, int | float | None) for one in cells)
    }
    shown = [["–" if one is None else said(one) for one in row] for row in rows]
    return Whole(title, heads, shown, numbers, caption)


def plus_minus(middle: float, std: float | None, digits: int = 3) -> str:
    """'0.910 ± 0.022', or the mean alone where there is no spread."""
    spread = "" if std is None else f" ± {std:.{digits}f}"
    return f"{middle:.{digits}f}{spread}"


def _range(pair: Sequence[float], between: str = " … ") -> str:
    return f"{pair[0]:.3f}{between}{pair[1]:.3f}"


# Stores


def store_tables(
    info: Mapping[str, Any], where: object, *, verbose: bool = False
) -> RenderableType:
    """The tables of `clocs info`, from what `store_info` returns of the store that is there.

    Of the quarantine its reasons are shown; every recording in it only if `verbose`.
    """
    remarks, quarantine = _remarks(info, verbose), _quarantine(info, verbose)
    ending = [*remarks, *quarantine]
    shortened = info["rows_without_recording"] > _MAX_NAMED or quarantine
    if shortened and not verbose:
        ending.append(Text(f"\nAll of them: clocs info {shlex.quote(str(where))} --verbose"))
    kept = {**info, "frames × leads": info["frames"], "shards": info["shards"] or None}
    kept["content_hash"] = info["content_hash"][:16]  # of 64, which --json gives
    kept["vectors"] = info["vectors"] if info["vectors"]["bytes"] else None
    facts = words_table("", kept, FACTS["store"])
    return Group(facts, Text(), _parts(info), Text(), _labels(info), *ending)


def _parts(info: Mapping[str, Any]) -> Whole:
    by = f"split seed {info['split_seed']}"
    if info["folds"]:
        validation = ", ".join(info["folds"]["validation"]) or "by hash"
        by = f"folds: test {', '.join(info['folds']['test'])}, validation {validation}"
    each = {row: {name: info["splits"][name][row] for name in PARTS} for row in _COUNTED}
    each = {row: counts | {"total": sum(counts.values())} for row, counts in each.items()}
    heads = (*PARTS, "total")
    rows = [
        (name, *(counts[head] for head in heads))
        for name, counts in (each | info["instances"]).items()
    ]
    return grid(f"Parts ({by}) and instances", ("", *heads), rows)


def _labels(info: Mapping[str, Any]) -> Whole:
    rows = [(name, count, info["label_frames"][name]) for name, count in info["labels"].items()]
    rows += [
        (f"{name} (left out)", None, count * len(info["leads"]))
        for name, count in info["left_out_frames"].items()
    ]
    return grid("Labels", ("", "recordings", "frames × leads"), rows)


def _remarks(info: Mapping[str, Any], verbose: bool) -> list[RenderableType]:
    counts = dict(info)
    if info["recordings_without_label"] == info["recordings"]:
        del counts["recordings_without_label"]
    notes = {words: counts.get(name) for name, words in _NOTES.items()}
    shown: list[RenderableType] = [Text(f"\n{n:,} {words}.") for words, n in notes.items() if n]
    sets = info["lead_sets"]
    if len(sets) > 1:
        rows = [(one["leads"], one["recordings"]) for one in sets[:_MAX_ROWS]]
        others = sum(one["recordings"] for one in sets[_MAX_ROWS:])
        rows += [("other sets", others)] if others else []
        shown += [Text(), grid("Leads of recordings", ("leads", "recordings"), rows)]
    if count := info["rows_without_recording"]:
        most = count if verbose else _MAX_NAMED
        names = ", ".join(info["rows_without_recording_list"][:most])
        more = f" … and {count - most:,} more" if count > most else ""
        shown.append(Text(f"\n{count:,} rows of the label table have no recording: {names}{more}"))
    return shown


def _quarantine(info: Mapping[str, Any], verbose: bool) -> list[RenderableType]:
    """Reasons with counts and an example of each, or every recording with its reason."""
    if not info["quarantined"]:
        return []
    title = f"Quarantined: {info['quarantined']:,}"
    if verbose:
        rows = [(one["reason"], one["id"], one["detail"]) for one in info["quarantine_list"]]
        return [Text(), grid(title, ("reason", "recording", "detail"), rows)]
    from clocs.datasets.base import Quarantined, faults_by_kind

    kinds = faults_by_kind(Quarantined(**one) for one in info["quarantine_list"])
    shown = [(one.reason, count, one.id, one.detail) for one, count in kinds[:_MAX_ROWS]]
    if others := sum(count for _, count in kinds[_MAX_ROWS:]):
        shown.append(("others", others, "", ""))
    table = grid(title, ("reason", "recordings", "such as", "detail"), shown)
    return [Text(), table]


def preview_tables(facts: Mapping[str, Any]) -> RenderableType:
    """The tables of `clocs prepare --dry-run`, from what `clocs.preview` returns."""
    shown: list[RenderableType] = [words_table("", facts, FACTS["preview"])]
    shown += [_examples(facts)] if facts["examples"] else []
    if facts["problems"]:
        rows = [
            (one["reason"], one["count"], "\n".join(one["examples"])) for one in facts["problems"]
        ]
        shown += [Text(), grid("Problems", ("reason", "recordings", "for example"), rows)]
    shown += [Text(f"Note: {notice}.") for notice in facts["notices"]]
    return Group(*shown, Text())


def _examples(facts: Mapping[str, Any]) -> Whole:
    heads = ("recording", "patient", "leads", "Hz", "s", "labels", "age", "sex", "taken")
    rows = []
    for one in facts["examples"]:
        leads = ", ".join(one["leads"][:4]) + (" …" if len(one["leads"]) > 4 else "")
        more = (one[name] for name in ("rate", "seconds", "labels", "age", "sex", "taken"))
        rows.append((one["id"], one["patient"], leads, *more))
    return grid("Examples", heads, rows)


# Models


def models_table(models: Sequence[Mapping[str, Any]], *, all_columns: bool) -> Whole:
    """One row per shipped model."""
    from clocs.models.model_card import HEADS, cells_of

    shown = [n for n, head in enumerate(HEADS) if all_columns or head in FACTS["models"]]
    rows = [[cells[n] for n in shown] for cells in map(cells_of, models)]
    return grid("Shipped models", [HEADS[n] for n in shown], rows)


def cards_summary(cards: list[dict[str, Any]]) -> Whole:
    """One row per seed of a pre-training."""
    heads = ("seed", "status", "epochs", "best epoch", "validation loss")
    names = [head.replace(" ", "_") for head in heads[1:]]
    rows = [(card["seed"], *(card["metrics"][name] for name in names)) for card in cards]
    return grid(f"{cards[0]['method']} on {cards[0]['dataset'] or 'nothing'}", heads, rows)


def scores_tables(card: Mapping[str, Any], scores: dict[str, Any]) -> RenderableType:
    """All scores of a classifier on test patients; AUC, AP and F1 are means over classes."""
    members = f", {len(card['encoders'])} members" if len(card["encoders"]) > 1 else ""
    title = f"{card['name']} ({card['protocol']}{members}) on {scores['dataset']}, per recording"
    overall = words_table(title, scores, FACTS["scores"])
    return Group(overall, _per_class(card, scores), _confusion(card, scores))


def _per_class(card: Mapping[str, Any], scores: dict[str, Any]) -> Whole:
    each = [*zip(scores["per_class"].items(), card["thresholds"], strict=True)]
    rows = [(label, *own.values(), limit) for (label, own), limit in each]
    caption = "F1, sensitivity and specificity of predictions from that probability on"
    names = (
        name.replace("specificity", "spec.").replace("sensitivity", "sens.")
        for name in each[0][0][1]
    )
    return grid("Each class against the rest", ("class", *names, "from"), rows, caption=caption)


def _confusion(card: Mapping[str, Any], scores: dict[str, Any]) -> Whole:
    each = zip(card["labels"], scores["confusion"], strict=True)
    if card["multilabel"]:
        heads = ("class", "both", "true alone", "predicted alone", "neither")
        rows = [(label, a, b, c, d) for label, ((d, c), (b, a)) in each]
        return grid("Recordings by what is true and what is predicted", heads, rows)
    title = "Recordings by true class (rows) and most probable class"
    return grid(title, ("", *card["labels"]), [(label, *counts) for label, counts in each])


# Evaluations

_UNKNOWN = "unknown: test patients may be among it"


def evaluation_table(result: Evaluation, others: Sequence[Evaluation] = ()) -> Whole:
    """One evaluation; `others` are the untrained encoders beside it."""
    per_row = result.per == "row"
    counted = "frames × leads" if per_row else "recordings"
    missing = result.undefined_classes
    of_class = {
        label: "undefined: missing from the test part" if label in missing else f"AUC {value:.3f}"
        for label, value in result.auc_per_class.items()
    }
    groups = {name: _group(one) for name, one in (result.by_sex | result.by_age).items()}
    folds = {
        f"fold {one['fold']}": f"AUC {one['auc_mean']:.3f}, {one['patients']:,} patients"
        for one in result.folds or ()
    }
    frames = f"{result.test_frames:,} {'frames × leads' if per_row else 'frames'}"
    facts: dict[str, Any] = {
        f"AUC per {_scored(result)}": plus_minus(result.auc_mean, result.auc_std),
        "  95 % interval (seeds, patients)": result.ci95 and _range(result.ci95),
        **{f"  {other.method} (untrained)": f"{other.auc_mean:.3f}" for other in others},
        "  against untrained": None if result.beats_random is None else _verdict(result),
        "trained on": _UNKNOWN if result.pretrain == "unknown" else None,
        **({"AUC per recording": f"{result.auc_recording_mean:.3f}"} if per_row else {}),
        "AUC of logits": f"{result.auc_logits_mean:.3f}",
        "average precision": f"{result.ap_mean:.3f}",
        "F1, thresholds from validation": f"{result.f1_mean:.3f}",
        "accuracy": f"{result.accuracy_mean:.3f}",
        **{f"  {name}": words for name, words in (of_class | groups).items()},
        "seeds": {seed: f"{auc:.3f}" for seed, auc in zip(result.seeds, result.auc, strict=True)},
        "leads": _leads(result),
        f"labeled {counted}": result.labeled,
        "  for validation": result.labeled_validation if result.fraction < 1 else None,
        "test": f"{frames} of {result.test_patients:,} patients",
        **{f"  {name}": words for name, words in folds.items()},
        "left out, without a label": result.unlabeled_recordings or None,
        "left out, copies of other recordings": result.left_out_copies or None,
    }
    shown = [
        (name, said(value, inside=False)) for name, value in facts.items() if value is not None
    ]
    return Whole(_title(result, result.method), (), shown)


def evaluations_table(results: Sequence[Evaluation]) -> Whole:
    """Several methods, one row each."""
    rows = [
        (
            name,
            plus_minus(result.auc_mean, result.auc_std),
            result.ci95 and _range(result.ci95, "…"),
            *(result.auc_recording_mean, result.ap_mean, result.f1_mean),
        )
        for name, result in zip(_names(results), results, strict=True)
    ]
    scored = f"AUC per {_scored(results[0])}"
    words = f"{scored}, its 95 % interval over seeds and patients, AUC per recording, AP, F1"
    return grid(
        _title(results[0], "Test scores"),
        ("encoder", "AUC", "95 %", "rec.", "AP", "F1"),
        rows,
        caption=f"{words}; leads {', '.join(results[0].leads)}",
    )


def verdicts(results: Sequence[Evaluation]) -> list[str]:
    """Comparisons with the untrained encoders and with each other, and classes without a score."""
    named = dict(zip(_names(results), results, strict=True))
    words = [f"{name} {_verdict(r)}." for name, r in named.items() if r.beats_random is not None]
    ranked = {name: r.better_than for name, r in named.items() if r.better_than is not None}
    words += [f"{name} is better than {', '.join(who)}." for name, who in ranked.items() if who]
    if len(ranked) > 1 and not any(ranked.values()):
        words.append("No method is significantly better than another.")
    undefined = sorted({label for r in results for label in r.undefined_classes})
    if undefined:
        words.append(f"No AUC for {', '.join(undefined)}: missing from the test part.")
    return words


def _scored(result: Evaluation) -> str:
    return "recording" if result.per == "recording" else "frame"


def _names(results: Sequence[Evaluation]) -> list[str]:
    return distinct([result.name for result in results])


def _title(result: Evaluation, what: str) -> str:
    if result.labels_count is not None:
        share = f"{result.labels_count} labeled recordings"
    else:
        share = f"F = {result.fraction:g}"
        share += "" if result.by == "frame" else f" by {result.by}"
    if result.fraction < 1 and result.validation_labels == "all":
        share += " and all validation labels"
    return f"{what} → {result.downstream}, {result.protocol}, {share}"


def _verdict(result: Evaluation) -> str:
    words = "beats" if result.beats_random else "does not beat"
    by = f"{result.random_difference:+.3f}, p = {result.random_p:.2g}"
    kind = f" ({result.random_encoder})" if result.random_encoder else ""
    return f"{words} {result.random_method}{kind}: {by}"


def _leads(result: Evaluation) -> str:
    trained = ", ".join(result.encoder_leads)
    return ", ".join(result.leads) + (f" (trained on {trained})" if trained else "")


def _group(group: dict[str, Any]) -> str:
    around = f" ({_range(group['ci95'])})" if group["ci95"] else ""
    missing = f"; without {', '.join(m)}" if (m := group["undefined_classes"]) else ""
    score = "undefined" if math.isnan(group["auc_mean"]) else f"{group['auc_mean']:.3f}{around}"
    patients = f"{group['patients']:,} patient{'s' if group['patients'] != 1 else ''}"
    return f"AUC {score}, {patients}{missing}"


def result_tables(names: Sequence[str], only: Sequence[str], runs: Sequence[Path]) -> list[Whole]:
    """The paper's tables of these names that folders of runs or reports have results of."""
    from clocs.experiments.results import open_results
    from clocs.experiments.tables import brief_tables

    results = open_results(*runs)
    about = "mean ± sd; the paper's in parentheses"
    about += "; simulated recordings, whose results mean nothing" if results.simulated else ""
    return [grid(*one, caption=about) for one in brief_tables(results, names, only)]


def demo_table(result: Demo) -> Whole:
    """One row per encoder: its AUC for each labeled fraction, and how separable patients are."""
    from clocs.experiments.demo import FRACTIONS, METHODS, SEEDS

    shares = [f"{fraction:.0%} of labels" for fraction in FRACTIONS]
    rows = []
    for method in METHODS:
        found = [result.evaluation(method, fraction) for fraction in FRACTIONS]
        own = result.distances.get(method)
        scores = [plus_minus(e.auc_mean, e.auc_std) for e in found]
        rows.append((method, *scores, own and f"{own.separability:.2f}"))
    title = f"Test AUC, linear evaluation, {SEEDS} seeds, mean ± sd"
    return grid(title, ("encoder", *shares, "separability"), rows)


# Predictions


def readable(rows: pl.DataFrame) -> tuple[pl.DataFrame, list[tuple[str, str]]]:
    """The rows of recordings of which something is usable; name and problem of each other one."""
    import polars as pl

    lost = pl.col("problem").is_not_null().all().over("file", "recording")
    named = rows.filter(lost).select(pl.coalesce("file", "recording"), "problem")
    return rows.filter(~lost), list(named.iter_rows())


def first_rows(rows: pl.DataFrame, drawn: Callable[[pl.DataFrame], RenderableType]) -> list[Any]:
    """A table of the first rows, and how many more there are."""
    more = rows.height - SHOWN
    said = [f"… and {more:,} more rows; see all with --out."] if more > 0 else []
    return [drawn(rows.head(SHOWN)), *said] if rows.height else []


def predictions_table(rows: pl.DataFrame, in_words: Callable[[str], str]) -> Whole:
    """What was predicted with its probability, or why not; `in_words` is a reason as printed."""
    over_time = "start" in rows.columns
    shown = []
    for row in rows.iter_rows(named=True):
        times = [_clock(row["start"]), _clock(row["end"])] if over_time else []
        why = in_words(row["problem"] or row["abstained"] or "")
        numbers = (row["ecg_share"], row["distance"])
        shown.append((row["recording"] or row["file"], *times, _predicted(row), *numbers, why))
    heads = ("recording", *(("from", "to") if over_time else ()))
    heads += ("predicted", "ECG", "distance", "why not")
    return grid("", heads, shown)


def predicted_summary(rows: pl.DataFrame) -> str:
    """How many rows were predicted, and how many were not."""
    what = "stretches" if "start" in rows.columns else "recordings"
    problems = int(rows["problem"].is_not_null().sum())
    abstained = int(rows["abstained"].is_not_null().sum())
    words = f"{rows.height - problems - abstained:,} of {rows.height:,} {what} predicted"
    words += f", {abstained:,} abstained from" if abstained else ""
    return f"{words}{f', {problems:,} could not be' if problems else ''}."


def label_meanings(rows: pl.DataFrame, meanings: Mapping[str, str]) -> str:
    """What the labels that are predicted mean; nothing where they say it themselves."""
    labels = rows["predicted"].drop_nulls()
    found = set((labels.explode() if labels.dtype.is_nested() else labels).drop_nulls())
    told = [f"{one}: {words}." for one, words in meanings.items() if one in found and one != words]
    return " ".join(told)


def _predicted(row: dict[str, Any]) -> str:
    """Labels with their probabilities."""
    labels = row["predicted"]
    if labels is None:
        return ""
    several = labels if isinstance(labels, list) else [labels]
    return ", ".join(f"{label} ({row[f'p({label})']:.2f})" for label in several) or "none"


def _clock(seconds: float) -> str:
    minutes, left = divmod(seconds, 60)
    return f"{minutes // 60:.0f}:{minutes % 60:02.0f}:{left:04.1f}"


# Patients


def retrieval_table(scores: Sequence[Retrieval]) -> Whole:
    """One row per pre-training, mean ± standard deviation over its seeds; chance below."""
    first = scores[0]
    runs: dict[str, list[Retrieval]] = {}
    for one in scores:
        runs.setdefault(one.run, []).append(one)
    # the title, the part and field of `Retrieval`, and the chance level of each column
    shown = []
    for part in ("halves", "recordings"):
        if (same := getattr(first, part)) is not None:
            title = f"top-1 match, {part} ({same['frame']:g} s)"
            shown.append((title, part, "top1", same["chance"]))
            shown.append(("top-10", part, "top10", same["chance10"]))
    if first.diagnosis is not None:
        title = f"P@10, diagnosis ({first.frame.seconds:g} s)"
        shown.append((title, "diagnosis", "precision", first.diagnosis["base_rate"]))
    names = distinct([f"{one.method}, E = {one.embedding_dim}" for one, *_ in runs.values()])
    rows = [
        (name, *(_over_seeds(seeds, part, field) for _, part, field, _ in shown))
        for name, seeds in zip(names, runs.values(), strict=True)
    ]
    seeds = sorted({one.seed for own in runs.values() if len(own) > 1 for one in own})
    notes = [f"mean ± sd over seeds {', '.join(map(str, seeds))}"] if seeds else []
    notes.append(f"leads {', '.join(first.leads)}")
    if first.one_recording_each:
        notes.append("every patient has one recording: a match is the other half of the same one")
    lengths = dict.fromkeys((one.frame_trained.seconds, one.method) for one in scores)
    if len({seconds for seconds, _ in lengths}) > 1:
        each = " and ".join(f"{seconds:g} s ({method})" for seconds, method in sorted(lengths))
        notes.append(f"trained on frames of {each}")
    if first.patients_seen:
        notes.append(f"{first.patients_seen:,} patients seen in training left out")
    title = f"Retrieval on {first.store}, {first.patients:,} unseen patients ({first.split})"
    rows.append(("chance", *(chance for *_, chance in shown)))
    heads = ("encoder", *(title for title, *_ in shown))
    return grid(title, heads, rows, caption="; ".join(notes))


def _over_seeds(seeds: Sequence[Retrieval], part: str, field: str) -> str | None:
    found = [getattr(one, part) for one in seeds]
    if None in found:
        return None
    values = [one[field] for one in found]
    return plus_minus(mean(values), stdev(values) if len(values) > 1 else None)
