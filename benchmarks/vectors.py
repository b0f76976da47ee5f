"""Search among more vectors than memory should hold: recall, latency, memory, cost of a build.

    python benchmarks/vectors.py --vectors 1000000 --work SCRATCH [--like EMBEDDINGS.parquet]

Clustered unit vectors: each patient is a center with ten vectors around it. Centers are rectified
mixtures of 24 factors, as an encoder's last layer gives them, or, with `--like`, mixtures of two
vectors of a file that `clocs embed` wrote. Queries are new vectors of patients in the index. The
index of the kind 'ivfpq' is built in one process and searched in another, through
`PatientIndex.search`, and so are the exact answers to the same queries. Filters pass random shares
of the rows, from a half to a two-thousandth. Each is also answered in both possible ways, by lists
(`lists_ms`, for `codes` read in them) and by a scan of the rows that pass (`exact_ms`);
`code_cost` is the time per code where that per row scanned is 1, and `chosen` what a search does.
A kept index in SCRATCH is searched again with `--search`.

Latency is that of one query at a time: the median and the 99th percentile of the quietest of
`--rounds` rounds, as other work on the machine only ever adds to it. 'own' is memory of the
process's own, 'mapped' the pages of files that happen to be in memory, which the system takes back
when it needs them.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.patients.embeddings import Embeddings
from clocs.patients.faiss_engines import load_faiss, scan
from clocs.patients.filters import Where
from clocs.patients.index import PatientIndex
from clocs.patients.on_disk_engine import OnDisk

FACTORS, K, QUERIES, PER_PATIENT, SPREAD = 24, 10, 200, 10, 0.35
BLOCK = 100_000
# Labels, by the share of rows.
SHARES = {
    "half": 0.5,
    "twentieth": 0.05,
    "fiftieth": 0.02,
    "two-hundredth": 0.005,
    "two-thousandth": 0.0005,
}


def unit(vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def spread(centers: NDArray[np.float32], draw: np.random.Generator) -> NDArray[np.float32]:
    """Vectors around their centers."""
    noise = draw.standard_normal(centers.shape, np.float32)
    return unit(centers + noise * np.float32(SPREAD / np.sqrt(centers.shape[1])))


def centers(n: int, dim: int, seed: int, like: Path | None) -> NDArray[np.float32]:
    draw = np.random.default_rng(seed)
    if like is None:
        mix = np.random.default_rng(0).normal(size=(FACTORS, dim)).astype(np.float32)
        return unit(np.maximum(draw.standard_normal((n, FACTORS), np.float32) @ mix, 0))
    real = unit(Embeddings.load(like).nonzero().vectors)
    share = draw.random((n, 1), np.float32) / 2
    one, other = (real[draw.integers(len(real), size=n)] for _ in range(2))
    return unit((1 - share) * one + share * other)


def blocks(n: int, dim: int, like: Path | None) -> Iterator[NDArray[np.float32]]:
    for start in range(0, n, BLOCK):
        count = min(BLOCK, n - start)
        own = centers(-(-count // PER_PATIENT), dim, 1 + start, like)
        yield spread(np.repeat(own, PER_PATIENT, axis=0)[:count], np.random.default_rng(2 + start))


def queries(n: int, dim: int, like: Path | None) -> NDArray[np.float32]:
    """New vectors of patients in the first block."""
    own = centers(-(-min(BLOCK, n) // PER_PATIENT), dim, 1, like)
    draw = np.random.default_rng(0)
    return spread(own[draw.integers(len(own), size=QUERIES)], draw)


def memory_mb() -> dict[str, float]:
    lines = Path("/proc/self/status").read_text().splitlines()
    kb = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith("Rss")}
    return {"own": kb["RssAnon"] / 1024, "mapped": kb["RssFile"] / 1024}


def build(n: int, dim: int, work: Path, like: Path | None) -> dict[str, float]:
    """Write vectors, then the index; seconds, CPU seconds and bytes."""
    with (work / "made.f32").open("wb") as file:
        for block in blocks(n, dim, like):
            file.write(block.data)
    vectors = np.memmap(work / "made.f32", np.float32, mode="r", shape=(n, dim))
    draw = np.random.default_rng(3).random(n)
    names = list(SHARES)
    sets = pl.Series([names[:count] for count in range(len(names) + 1)], dtype=pl.List(pl.String))
    rows = Embeddings.make_rows(
        {
            "dataset": pl.Series(["made"]).new_from_index(0, n),
            "patient": pl.select("p" + pl.int_range(n).cast(pl.String)).to_series(),
            "labels": sets[sum((draw < share).astype(np.int64) for share in SHARES.values())],
            "age": np.floor(draw * 2**20 % 100),
            "sex": pl.Series(["male", "female"])[(draw * 2**10 % 1 < 0.5).astype(np.int64)],
        },
        n,
    )
    del draw
    before = memory_mb()["own"]
    start, used = time.perf_counter(), time.process_time()
    index = PatientIndex.build(Embeddings(vectors, rows, "patient", "e" * 64), "ivfpq")
    index.save(work / "index")
    seconds, used = time.perf_counter() - start, time.process_time() - used
    (work / "made.f32").unlink()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"build_s": seconds, "build_cpu_s": used, "rows_mb": before, "peak_mb": peak}


def timed(
    index: PatientIndex,
    asked: NDArray[np.float32],
    rounds: int,
    where: NDArray[np.bool_] | None,
) -> tuple[NDArray[np.int64], tuple[float, float]]:
    """Rows found, and median and 99th percentile of the quietest round, in ms."""
    best = (float("inf"), float("inf"))
    for _ in range(rounds):
        seconds, found = [], []
        for query in asked:
            start = time.perf_counter()
            found.append(index.search(query[None], K, where=where).rows[0])
            seconds.append(time.perf_counter() - start)
        ms = np.array(seconds) * 1e3
        best = min(best, (float(np.median(ms)), float(np.quantile(ms, 0.99))))
    return np.array(found), best


def quickest(
    act: Callable[[NDArray[np.float32]], object], asked: NDArray[np.float32], rounds: int
) -> float:
    """Median over queries of the quickest of some rounds, in ms."""
    best = np.full(len(asked), np.inf)
    for number in np.tile(np.arange(len(asked)), rounds):
        start = time.perf_counter()
        act(asked[number][None])
        best[number] = min(best[number], (time.perf_counter() - start) * 1e3)
    return float(np.median(best))


def both_ways(
    engine: OnDisk, asked: NDArray[np.float32], mask: NDArray[np.bool_], scanned: float, rounds: int
) -> dict[str, object]:
    """What a filtered query costs in lists, beside the ms of scanning the rows that pass."""
    passing = int(mask.sum())
    probes, codes, wanted = engine.reads(K, passing)
    lists = quickest(partial(engine.candidates, k=K, allowed=mask), asked, rounds)
    return {
        "passing": passing,
        "lists": probes,
        "codes": codes,
        "candidates": wanted,
        "lists_ms": lists,
        "scan_ms": scanned,
        "code_cost": lists / codes / (scanned / passing),
        "chosen": "scan" if engine.scan_is_cheaper(K, passing) else "lists",
    }


def search(n: int, dim: int, work: Path, like: Path | None, rounds: int) -> dict[str, object]:
    start = time.perf_counter()
    index = PatientIndex.load(work / "index")
    opened = time.perf_counter() - start
    engine = index.engine
    assert isinstance(engine, OnDisk)
    asked = queries(n, dim, like)
    facts: dict[str, object] = {"open_s": opened, "lists": engine.lists}
    facts |= {f"effort_{one.depth}": vars(one) for one in engine.efforts}
    facts["disk_mb"] = {
        file.name: round(file.stat().st_size / 2**20, 1) for file in (work / "index").iterdir()
    }
    masks: dict[str, NDArray[np.bool_] | None] = {"none": None}
    for name in SHARES:
        start = time.perf_counter()
        masks[name] = Where(label=name).mask(index.rows)
        facts[f"mask_{name}_ms"] = (time.perf_counter() - start) * 1e3
    for name, mask in masks.items():
        few = asked if mask is None else asked[:50]
        index.search(few[:1], K, where=mask)
        found, (p50, p99) = timed(index, few, rounds, mask)
        start = time.perf_counter()
        together = index.search(np.concatenate([few] * 3), K, where=mask).rows
        each = (time.perf_counter() - start) / len(together) * 1e3
        held = memory_mb()
        rows = None if mask is None else np.flatnonzero(mask)
        start = time.perf_counter()
        near = scan(index.vectors, few, K, rows)[0]
        exact = (time.perf_counter() - start) / len(few) * 1e3
        alone = quickest(partial(scan, index.vectors, k=K, rows=rows), few[:5], rounds)
        recall = np.mean([len(np.intersect1d(a, b)) / K for a, b in zip(found, near, strict=True)])
        facts[name] = {
            "recall": float(recall),
            "p50_ms": p50,
            "p99_ms": p99,
            "batch_ms": each,
            "exact_ms": alone,
            "exact_batch_ms": exact,
            **held,
        }
        if mask is not None and rows is not None:
            facts[f"ways_{name}"] = both_ways(engine, few[:20], mask, alone, rounds)
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument(
        "--work", type=Path, required=True, help="scratch folder: 1.2 kB per vector"
    )
    parser.add_argument("--like", type=Path, help="embeddings to imitate")
    parser.add_argument("--threads", type=int, help="of FAISS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--search", action="store_true", help="only search the index that is there")
    parser.add_argument("--step", choices=("build", "search"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    n, dim, work, like = options.vectors, options.dim, options.work, options.like
    if options.threads:
        load_faiss().omp_set_num_threads(options.threads)
    if options.step == "build":
        print(json.dumps(build(n, dim, work, like)))
        return
    if options.step == "search":
        print(json.dumps(search(n, dim, work, like, options.rounds)))
        return
    work.mkdir(parents=True, exist_ok=True)
    if not options.search:
        shutil.rmtree(work / "index", ignore_errors=True)
    for step in ("search",) if options.search else ("build", "search"):
        command = [sys.executable, __file__, *sys.argv[1:], "--step", step]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        for name, value in json.loads(done.stdout).items():
            print(f"{name:<24}{show(value)}", flush=True)


def show(value: object) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{name} {show(one)}" for name, one in value.items())
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
