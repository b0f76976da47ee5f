"""Seconds of `clocs prepare` of small files on an S3 server of this machine, against the same here.

    python benchmarks/addresses.py [--records 250] [--repeats 3] [--workers 2] [--json]

The files are WFDB records of 10 s and one lead, two files each. The server is moto's, a process of
its own. Both sides run alternately, each in a process of its own, start-up included; the median
counts. The network of this machine has no latency: what is measured is the work of listing, of
fetching each file in a request, and of the server.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

SECONDS, RATE = 10, 100


def serve(ready: Connection) -> None:
    """Tell the port, then serve until the other end is closed."""
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    ready.send(server.get_host_and_port())
    try:
        ready.recv()
    except EOFError:
        server.stop()


def make_files(folder: Path, records: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(records):
        walk = np.clip(np.cumsum(rng.integers(-9, 10, SECONDS * RATE)), -2000, 2000)
        name = f"r{number:05d}"
        header = f"{name} 1 {RATE} {SECONDS * RATE}\n{name}.dat 16 1000/mV 16 0 0 0 0 II\n"
        (folder / f"{name}.hea").write_text(header)
        (folder / f"{name}.dat").write_bytes(walk.astype("<i2").tobytes())


def seconds_of(source: str, out: Path, workers: int) -> float:
    words = ["prepare", "folder", source, "--out", str(out), "--workers", str(workers), "--json"]
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "clocs", *words],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - start


def measure(records: int, repeats: int, workers: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    theirs.close()
    host, port = ours.recv()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": "me",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    import s3fs

    took: dict[str, list[float]] = {"here": [], "s3": []}
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work, "files")
        folder.mkdir()
        make_files(folder, records)
        system = s3fs.S3FileSystem()
        system.mkdir("ward")
        system.put(f"{folder}/", "ward/files/", recursive=True)
        for turn in range(repeats):
            for name, source in (("here", str(folder)), ("s3", "s3://ward/files")):
                took[name].append(seconds_of(source, Path(work, f"{name}{turn}"), workers))
        tables = {Path(work, f"{name}0", "table.parquet").read_bytes() for name in took}
        assert len(tables) == 1, "the stores differ"
    ours.close()
    server.join()
    here, there = (statistics.median(took[name]) for name in ("here", "s3"))
    return {
        "files": 2 * records,
        "workers": workers,
        "here_s": here,
        "s3_s": there,
        "ratio": there / here,
        "ms_more_per_file": 1000 * (there - here) / (2 * records),
        "all": took,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=250)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure(given.records, given.repeats, given.workers)
    if given.json:
        print(json.dumps(found))
        return
    print(f"{found['files']} files, {found['workers']} workers, median of {given.repeats}")
    print(f"here  {found['here_s']:6.2f} s")
    print(f"S3    {found['s3_s']:6.2f} s, {found['ratio']:.2f} times as long")
    print(f"      {found['ms_more_per_file']:.1f} ms more per file")


if __name__ == "__main__":
    main()
