"""Evaluations in the terminal: one in full, or one row per method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from clocs.cli.tables import columns, plus_minus

if TYPE_CHECKING:
    from clocs.evaluation import Evaluation


def evaluation_table(result: Evaluation, others: Sequence[Evaluation] = ()) -> Table:
    """One evaluation, for a person; `others` are the untrained encoders beside it."""
    table = Table(title=_title(result, result.method), show_header=False)
    auc = plus_minus(result.auc_mean, result.auc_std)
    table.add_row(f"AUC per {_scored(result)}", Text(auc, "bold"))
    if result.ci95 is not None:
        table.add_row("  95 % interval (seeds, patients)", _range(result.ci95))
    for other in others:
        table.add_row(f"  {other.method} (untrained)", f"{other.auc_mean:.3f}")
    if result.beats_random is not None:
        table.add_row("  against untrained", _verdict(result))
    if result.per == "row":
        table.add_row("AUC per recording", f"{result.auc_recording_mean:.3f}")
    table.add_row("AUC of logits", f"{result.auc_logits_mean:.3f}")
    table.add_row("average precision", f"{result.ap_mean:.3f}")
    table.add_row("F1, thresholds from validation", f"{result.f1_mean:.3f}")
    table.add_row("accuracy", f"{result.accuracy_mean:.3f}")
    for label, value in result.auc_per_class.items():
        undefined = label in result.undefined_classes
        words = "undefined: missing from the test part" if undefined else f"AUC {value:.3f}"
        table.add_row(f"  {label}", words)
    for groups in (result.by_sex, result.by_age):
        for name, group in groups.items():
            table.add_row(f"  {name}", _group(group))
    table.add_row(
        "seeds", ", ".join(f"{s}: {a:.3f}" for s, a in zip(result.seeds, result.auc, strict=True))
    )
    table.add_row("leads", _leads(result))
    rows = "recordings" if result.per == "recording" else "frames × leads"
    table.add_row(f"labeled {rows}", ", ".join(f"{n:,}" for n in result.labeled))
    noise = "" if result.noise is None else f", with noise ({result.noise})"
    words = "frames" if result.per == "recording" else "frames × leads"
    table.add_row(
        "test", f"{result.test_frames:,} {words} of {result.test_patients:,} patients{noise}"
    )
    for one in result.conditions:
        table.add_row(f"  {one['condition']}", f"AUC {one['auc_mean']:.3f}")
    for fold in result.folds or ():
        words = f"AUC {fold['auc_mean']:.3f}, {fold['patients']:,} patients"
        table.add_row(f"  fold {fold['fold']}", words)
    if result.unlabeled_recordings:
        words = f"{result.unlabeled_recordings:,} recordings without a label"
        table.add_row("left out", words)
    if result.left_out_copies:
        words = f"{result.left_out_copies:,} test recordings that are copies of training recordings"
        table.add_row("left out", words)
    return table


def evaluations_table(results: Sequence[Evaluation]) -> Table:
    """Several methods, one row each."""
    scored = f"AUC per {_scored(results[0])}"
    words = f"{scored}, its 95 % interval over seeds and patients, AUC per recording, AP, F1"
    caption = f"{words}; leads {', '.join(results[0].leads)}"
    table = Table(title=_title(results[0], "Test scores"), caption=caption)
    columns(table, ("encoder", "AUC", "95 %", "rec.", "AP", "F1"), left=("encoder",))
    for name, result in zip(_names(results), results, strict=True):
        table.add_row(
            name,
            plus_minus(result.auc_mean, result.auc_std),
            "–" if result.ci95 is None else "{:.3f}…{:.3f}".format(*result.ci95),
            f"{result.auc_recording_mean:.3f}",
            f"{result.ap_mean:.3f}",
            f"{result.f1_mean:.3f}",
        )
    return table


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
    from clocs.evaluation.result import distinct

    return distinct([result.name for result in results])


def _title(result: Evaluation, what: str) -> str:
    if result.labels_count is not None:
        share = f"{result.labels_count} labeled recordings"
    else:
        share = f"F = {result.fraction:g}"
        share += "" if result.by == "frame" else f" by {result.by}"
    return f"{what} → {result.downstream}, {result.protocol}, {share}"


def _verdict(result: Evaluation) -> str:
    assert result.random_difference is not None  # as beats_random is known
    words = "beats" if result.beats_random else "does not beat"
    by = f"{result.random_difference:+.3f}, p = {result.random_p:.2g}"
    return f"{words} {result.random_method}: {by}"


def _leads(result: Evaluation) -> str:
    leads, trained = ", ".join(result.leads), ", ".join(result.encoder_leads)
    if not trained:
        return leads
    same = set(result.leads) == set(result.encoder_leads)
    return f"{leads} (as in training)" if same else f"{leads} (trained on {trained})"


def _group(group: dict[str, Any]) -> str:
    around = f" ({_range(group['ci95'])})" if group["ci95"] else ""
    missing = f"; without {', '.join(m)}" if (m := group["undefined_classes"]) else ""
    mean = "undefined" if math.isnan(group["auc_mean"]) else f"{group['auc_mean']:.3f}{around}"
    patients = f"{group['patients']:,} patient{'s' if group['patients'] != 1 else ''}"
    return f"AUC {mean}, {patients}{missing}"


def _range(pair: Sequence[float]) -> str:
    return "{:.3f} … {:.3f}".format(*pair)
