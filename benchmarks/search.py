"""How well and how fast neighbours are found: recall, latency, build time and memory.

    python benchmarks/search.py [--folder SCRATCH] [--sizes 10000,1000000,10000000]

Each case runs in a process of its own, so that its peak memory is its own. Vectors have 128
dimensions and are simulated: rectified mixtures of 24 factors, as an encoder's last layer gives
them. Recall@10 is measured against a scan of all vectors; latency is of one query at a time through
`PatientIndex.search`. The index is saved and loaded again before the queries. 'held' is memory of
the process's own while it answers; 'peak' is of building, with pages of mapped files, which the
system takes back when it needs them.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clocs.patients.embeddings import Embeddings
from clocs.patients.index import KindOrAuto, PatientIndex, scan

DIM, FACTORS, K, QUERIES = 128, 24, 10, 200
BLOCK = 100_000


def vectors(n: int, seed: int) -> NDArray[np.float32]:
    draw = np.random.default_rng(seed)
    mix = np.random.default_rng(0).normal(size=(FACTORS, DIM)).astype(np.float32)
    factors = draw.standard_normal((n, FACTORS), np.float32)
    made = np.maximum(factors @ mix, 0) + 0.3 * draw.random((n, DIM), np.float32)
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    return np.asarray(made, np.float32)


def on_disk(path: Path, n: int) -> NDArray[np.float32]:
    """(n, DIM) in a memory-mapped file."""
    with path.open("wb") as file:
        for start in range(0, n, BLOCK):
            file.write(vectors(min(BLOCK, n - start), 1 + start // BLOCK).data)
    return np.memmap(path, np.float32, mode="r", shape=(n, DIM))


def peak_mb() -> float:
    """Resident memory at its highest, pages of mapped files included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def anonymous_mb() -> float:
    """Memory of the process's own now, without mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return float("nan")


def case(kind: KindOrAuto, n: int, folder: Path) -> dict[str, float | str]:
    base = on_disk(folder / "vectors.bin", n)
    names = [f"p{i}" for i in range(n)]
    rows = Embeddings.make_rows({"dataset": ["made"] * n, "patient": names}, n)
    del names
    start = time.perf_counter()
    index = PatientIndex.build(Embeddings(base, rows, "patient", "e" * 64), kind)
    build = time.perf_counter() - start
    start = time.perf_counter()
    index.save(folder / "index")
    save = time.perf_counter() - start
    built_mb = peak_mb()
    del index, base, rows
    (folder / "vectors.bin").unlink()
    start = time.perf_counter()
    index = PatientIndex.load(folder / "index")
    load = time.perf_counter() - start
    queries = vectors(QUERIES, 10**6)
    index.search(queries[:1], K)
    seconds, found = [], []
    for query in queries:
        start = time.perf_counter()
        found.append(index.search(query[None], K).rows[0])
        seconds.append(time.perf_counter() - start)
    held = anonymous_mb()
    exact = scan(index.vectors, queries, K, None)[0]
    hits = [len(np.intersect1d(a, b)) / K for a, b in zip(found, exact, strict=True)]
    return {
        "kind": kind,
        "n": n,
        "recall": float(np.mean(hits)),
        "median_ms": float(np.median(seconds) * 1e3),
        "p95_ms": float(np.quantile(seconds, 0.95) * 1e3),
        "build_s": build,
        "save_s": save,
        "load_s": load,
        "disk_mb": sum(f.stat().st_size for f in (folder / "index").iterdir()) / 2**20,
        "held_mb": held,
        "peak_mb": built_mb,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--folder", type=Path, help="for scratch files: 7 GB at 10 million")
    parser.add_argument("--sizes", default="10000,1000000,10000000")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        kind, n = options.case.split(":")
        print(json.dumps(case(kind, int(n), options.folder)))
        return
    names = (
        "recall@10",
        "median",
        "p95",
        "build",
        "save",
        "load",
        "disk",
        "held",
        "peak",
    )
    units = ("", "ms", "ms", "s", "s", "s", "s", "MB", "MB", "MB")
    print(f"{'':5}{'vectors':>11}" + "".join(f"{name:>10}" for name in names))
    print(f"{'':16}" + "".join(f"{unit:>10}" for unit in units), flush=True)
    for n in map(int, options.sizes.split(",")):
        for kind in ("exact", "hnsw") if n <= 1_000_000 else ("ivf",):
            folder = Path(tempfile.mkdtemp(dir=options.folder))
            try:
                command = [
                    sys.executable,
                    __file__,
                    "--case",
                    f"{kind}:{n}",
                    "--folder",
                    str(folder),
                ]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
            finally:
                shutil.rmtree(folder)
            f = json.loads(done.stdout)
            numbers = [f"{f['recall']:.4f}", f"{f['median_ms']:.2f}", f"{f['p95_ms']:.2f}"]
            numbers += [f"{f[name]:.2f}" for name in ("build_s", "save_s", "load_s")]
            numbers += [f"{f[name]:.0f}" for name in ("disk_mb", "held_mb", "peak_mb")]
            print(f"{kind:<5}{n:>11,}" + "".join(f"{one:>10}" for one in numbers), flush=True)


if __name__ == "__main__":
    main()
