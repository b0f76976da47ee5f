"""How often is a person found again by an embedding of their ECG, among how many?

A query is searched in a gallery that holds one vector per patient, the query's own patient among
them: the second halves of recordings for first halves or, where patients have several recordings,
another recording. Galleries are drawn at random from the patients at hand, so none is larger than
these; nothing is extrapolated. Half a recording from the same minute is far easier to find than a
recording of another day.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clocs.errors import SettingError
from clocs.evaluation.bootstrap import interval
from clocs.frames.frames import Frames
from clocs.kernels import keyed_random
from clocs.training.checkpoint import Checkpoint, check_no_leak, seen_patients
from research.analyses.directions import identity_directions, standardized_by
from research.analyses.frame_vectors import FrameVectors, about, embed_frames, without_copies

SIZES = (100, 1000, 10_000)
NEAREST = 10
_AT_ONCE = 1024  # queries compared with the gallery together

Pairs = Literal["halves", "recordings"]
Patients = Literal["test", "unseen"]


def privacy(
    checkpoint: Checkpoint,
    frames: Frames,
    *,
    sizes: Sequence[int] = SIZES,
    pairs: Pairs = "halves",
    patients: Patients = "test",
    draws: int = 200,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """How often a patient is found in random galleries, by two ways of comparing vectors.

    By 'cosine', as the search does it; and by a metric that was 'trained' on the recordings of the
    training patients, as somebody would who has ECGs of others. Both after subtracting the mean of
    the training vectors and dividing by their spread.

    Args:
        checkpoint: An encoder.
        frames: Cut as the encoder expects them.
        sizes: Patients in a gallery; sizes beyond the number of patients are left out, and all of
            them are added.
        pairs: Whether query and gallery are 'halves' of a recording or different 'recordings'.
        patients: Who is searched for: 'test' patients or, with 'cosine' only, all patients that
            are 'unseen' by the encoder.
        draws: Random galleries of each size.
        seed: Of the galleries.
        device: Where to compute.

    Returns:
        Shares found first and among the ten nearest, by way and size; and settings.
    """
    found = without_copies(embed_frames(checkpoint, frames, device=device), frames)
    searched = found.part("test")
    if patients == "unseen":
        seen = seen_patients(checkpoint, frames)
        searched = found.where(np.flatnonzero(~seen[found.patient]))
    else:
        check_no_leak(checkpoint, frames)
    return {
        "analysis": "privacy",
        "dataset": frames.dataset,
        "split_seed": frames.split_seed,
        "leads": list(frames.leads),
        "frame": frames.spec.to_dict(),
        "encoders": [about(checkpoint)],
        "patients": patients,
        **privacy_of_vectors(
            found.part("train"),
            searched,
            sizes=sizes,
            pairs=pairs,
            ways=("cosine", "trained") if patients == "test" else ("cosine",),
            draws=draws,
            seed=seed,
            device=device,
        ),
    }


def privacy_of_vectors(
    train: FrameVectors,
    searched: FrameVectors,
    *,
    sizes: Sequence[int] = SIZES,
    pairs: Pairs = "halves",
    ways: Sequence[str] = ("cosine", "trained"),
    draws: int = 200,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """As `privacy`, of vectors of frames: of others to learn from, and of those searched for."""
    train, searched = standardized_by(train, train, searched)
    query, gallery, several = query_and_gallery(searched, pairs)
    results = {}
    for way in ways:
        x, y = query.vectors, gallery.vectors
        if way == "trained":
            learned = identity_directions(*one_pair_each(train))
            x, y = learned.weighted(x), learned.weighted(y)
        results[way] = found_again(
            x, y, sizes=sizes, several=several, draws=draws, seed=seed, device=device
        )
    return {
        "pairs": pairs,
        "searchable": len(gallery),
        "queries": int(several.sum()),
        "draws": draws,
        "seed": seed,
        "ways": results,
    }


def one_pair_each(found: FrameVectors) -> tuple[FrameVectors, FrameVectors]:
    """First and second halves of one recording of each patient."""
    first, second = found.halves()
    some = np.unique(first.patient, return_index=True)[1]
    if len(some) < 2:
        raise SettingError(
            f"{found.dataset} has too few recordings of two frames to compare their halves; "
            "cut them into shorter frames"
        )
    return first.where(some), second.where(some)


def query_and_gallery(
    found: FrameVectors, pairs: Pairs
) -> tuple[FrameVectors, FrameVectors, NDArray[np.bool_]]:
    """One query and one gallery vector per patient, and who has a query.

    A patient with one recording only is in the gallery of 'recordings', and never searched for.
    """
    if pairs == "halves":
        query, gallery = one_pair_each(found)
        several = np.ones(len(query), bool)
    else:
        recordings = found.by_recording()
        _, first = np.unique(recordings.patient, return_index=True)
        last = len(recordings) - 1 - np.unique(recordings.patient[::-1], return_index=True)[1]
        query, gallery = recordings.where(first), recordings.where(last)
        several = first != last
        if several.sum() < 2:
            raise SettingError(
                f"{found.dataset} has too few patients with two recordings; give 'halves' as "
                "`pairs`"
            )
    return query, gallery, several


def found_again(
    query: NDArray[np.floating],
    gallery: NDArray[np.floating],
    *,
    sizes: Sequence[int] = SIZES,
    several: NDArray[np.bool_] | None = None,
    draws: int = 200,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> list[dict[str, Any]]:
    """The share of queries whose own patient is the nearest by cosine, or among the ten nearest.

    An equally near patient counts as nearer, so that vectors without a direction find nobody.

    Args:
        query: (patients, dim).
        gallery: (patients, dim), row by row the same patient.
        sizes: Patients in a gallery; those that are too large are left out, and all are added.
        several: (patients,) who is searched for; everybody by default.
        draws: Random galleries of each size.
        seed: Of the galleries.
        device: Where to compute.

    Returns:
        One row per size: means over galleries, and the central 95 % of galleries; None for all
        patients, of which there is one gallery.
    """
    everybody = len(query)
    asked = np.ones(everybody, bool) if several is None else several
    usable = sorted({size for size in sizes if 2 <= size < everybody})
    members = [_galleries(everybody, size, draws, seed) for size in usable]
    members.append(torch.ones(everybody, 1))
    nearer = _nearer(query, gallery, torch.cat(members, dim=1), device)
    rows = []
    for size, own, counts in zip(
        [*usable, everybody], members, nearer.split([m.shape[1] for m in members], 1), strict=True
    ):
        counted = own.bool() & torch.from_numpy(asked)[:, None]
        total = counted.sum(dim=0).clamp(min=1)
        row: dict[str, Any] = {"size": size, "galleries": own.shape[1]}
        for name, most in (("top1", 1), ("top10", NEAREST)):
            shares = (((counts < most) & counted).sum(dim=0) / total).double().numpy()
            row[name] = float(shares.mean())
            row[f"{name}_ci95"] = interval(shares) if own.shape[1] > 1 else None
            row[f"{name}_chance"] = min(1.0, most / size)
        rows.append(row)
    return rows


def _galleries(everybody: int, size: int, draws: int, seed: int) -> Tensor:
    """(patients, draws) 1 for those in the gallery."""
    key = keyed_random.fold(keyed_random.member_keys([seed]), keyed_random.stream("gallery"), size)
    keys = keyed_random.fold(key.expand(draws).contiguous(), torch.arange(draws))
    chosen = keyed_random.permutation(keys, everybody)[:, :size]
    return torch.zeros(draws, everybody).scatter_(1, chosen, 1.0).T.contiguous()


def _nearer(
    query: NDArray[np.floating],
    gallery: NDArray[np.floating],
    members: Tensor,
    device: torch.device | str,
) -> Tensor:
    """(patients, galleries) how many others in a gallery are as near as one's own, or nearer."""
    x, y = (
        torch.nn.functional.normalize(torch.from_numpy(np.asarray(z, np.float32)).to(device))
        for z in (query, gallery)
    )
    there, found = members.to(device), []
    for start in range(0, len(x), _AT_ONCE):
        near = x[start : start + _AT_ONCE] @ y.T
        rows = torch.arange(len(near), device=near.device)
        above = near >= near[rows, start + rows][:, None]
        above[rows, start + rows] = False
        found.append((above.float() @ there).cpu())
    return torch.cat(found)
