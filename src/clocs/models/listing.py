"""The shipped models side by side: what `clocs models` lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from clocs.models.classifier import Classifier, load
from clocs.models.model_card import first_card, publications_of, table
from clocs.recording import STANDARD_LEADS
from clocs.training.shipped import SHIPPED, Shipped


@dataclass(frozen=True)
class Listed:
    """A shipped model in one line."""

    name: str
    kind: str  # 'encoder' or 'classifier'
    summary: str
    data: list[str]  # datasets that shaped its weights
    leads: list[str]
    seconds: float  # of a frame
    rate: float  # in Hz
    size: int  # bytes of its files
    auc: float | None  # on test patients of the dataset it learned on, with its 95 % interval
    auc_ci95: list[float] | None
    license: list[str]  # of the data

    def json(self) -> dict[str, Any]:
        return asdict(self)


def shipped_models() -> list[Listed]:
    """The models inside the package, one row each."""
    return [_listed(row) for row in SHIPPED.values()]


def _listed(row: Shipped) -> Listed:
    model = load(row.file)
    card = first_card(model)
    auc: float | None = None
    interval: list[float] | None = None
    if isinstance(model, Classifier):
        auc, interval = model.card.scores.get("auc"), model.card.scores.get("ci95")
    elif row.scores:
        own = row.scores[0]
        auc, interval = own.auc, [own.low, own.high]
    return Listed(
        name=row.name,
        kind=row.kind,
        summary=row.summary,
        data=list(dict.fromkeys(one.dataset for one in card.trained_on)),
        leads=list(card.encoder.get("leads") or card.leads),
        seconds=card.frame.seconds,
        rate=card.frame.rate,
        size=sum(file.stat().st_size for file in row.files),
        auc=auc,
        auc_ci95=interval,
        license=list(dict.fromkeys(one.license for one in publications_of(card))),
    )


HEADS = ("name", "kind", "learned on", "leads", "frame", "size", "AUC", "license of the data")


def cells_of(one: Listed) -> list[str]:
    """The cells below `HEADS`."""
    interval = "" if one.auc_ci95 is None else f" ({one.auc_ci95[0]:.3f}–{one.auc_ci95[1]:.3f})"
    return [
        one.name,
        one.kind,
        ", ".join(one.data),
        "twelve" if one.leads == list(STANDARD_LEADS) else ", ".join(one.leads),
        f"{one.seconds:.3g} s at {one.rate:g} Hz",
        f"{one.size / 1e3:,.0f} kB",
        "–" if one.auc is None else f"{one.auc:.3f}{interval}",
        ", ".join(one.license),
    ]


def models_table(models: Sequence[Listed]) -> str:
    """The list in Markdown, for the documentation."""
    rows = [[f"[{one.name}](models/{one.name}.md)", *cells_of(one)[1:]] for one in models]
    return table(HEADS, rows)
