"""The process that computes a map: `python -m clocs.explorer.umap_worker vectors.npy {…}`.

The second argument are the settings. Writes positions.clocs beside its input and, on stdout, a
line of JSON for every step forward.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

_SHARE = 0.35  # of the time that finding neighbours takes; the rest is arranging


def main(source: Path, settings: dict[str, Any]) -> None:
    vectors = np.load(source, allow_pickle=False)
    _say(0.02, "starting UMAP")
    warnings.simplefilter("ignore")
    try:
        positions = _arranged(vectors, settings)
    except Exception as error:  # whatever UMAP raises is worth a sentence, never a dead server
        _write({"error": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"})
        sys.exit(1)
    from clocs.explorer.packing import pack

    positions = _upright(positions)
    source.with_name("positions.clocs").write_bytes(pack({}, {"positions": positions}))


def _arranged(vectors: Any, settings: dict[str, Any]) -> Any:
    import umap

    _say(0.05, "finding every patient's neighbours")
    reducer = umap.UMAP(
        n_neighbors=min(settings["neighbours"], len(vectors) - 1),
        min_dist=settings["min_dist"],
        metric="cosine",
        random_state=settings["seed"],  # one thread, but the same map every time
        init="pca",
        verbose=True,
        tqdm_kwds={"file": _Steps(), "bar_format": "{n_fmt}/{total_fmt}", "mininterval": 0.2},
    )
    # UMAP prints what it does; the progress lines must stay alone on stdout.
    _voice.append(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123
        sys.stdout = nowhere
        made = reducer.fit_transform(vectors)
    return np.ascontiguousarray(made, np.float32)


def _upright(positions: Any) -> Any:
    """Centred, the longer side across, so that a map fills a screen."""
    centred = positions - positions.mean(axis=0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    return np.ascontiguousarray(centred @ axes[:, ::-1], np.float32)


class _Steps:
    """The file that tqdm writes epochs to."""

    def write(self, text: str) -> int:
        done, _, total = text.strip().rpartition("\r")[2].partition("/")
        if done.isdigit() and total.isdigit() and int(total):
            _say(_SHARE + (1 - _SHARE) * int(done) / int(total), "arranging the map")
        return len(text)

    def flush(self) -> None: ...


_voice: list[Any] = [sys.stdout]  # the last is spoken to


def _say(progress: float, words: str) -> None:
    _write({"progress": round(progress, 3), "words": words})


def _write(fact: dict[str, Any]) -> None:
    _voice[-1].write(json.dumps(fact) + "\n")
    _voice[-1].flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
