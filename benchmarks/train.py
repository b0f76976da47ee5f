"""Instances per second while pre-training, against the ordinary way of writing it.

    python benchmarks/train.py [--members 1,5] [--methods cmsc,simclr] [--encoder resnet] …

An instance is one batch element with all its views; members add up. Gathering, perturbing and the
optimizer are counted; start-up, compilation and validation are not. The ordinary way
(`train_baseline.py`) trains one member with a per-item Dataset, a DataLoader with 0 or 2 workers
(the better one counts), one forward pass per view and a Python loop over pairs of views. Both sides
see the same frames and run alternately. Where CMSC is measured, too, views per second are also
given as a share of its own with as many members. The limit that memory bandwidth sets assumes 60 kB
per view, as the paper's CNN needs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

import train_baseline as baseline
from clocs.encoders.make import ENCODERS
from clocs.frames.frames import Frames
from clocs.kernels import keyed_random
from clocs.pretraining.plan import Plan, Precision
from clocs.pretraining.task import PretrainingTask
from clocs.recording import FrameSpec
from clocs.training import Settings
from clocs.training.loop import Engine
from clocs.training.replicas import Layout, Replicas

METHODS = ("cmsc", "cmlc", "cmsmlc", "simclr", "byol", "mtssl")
BYTES_A_VIEW = 60_000
BATCH = 256


@dataclass(frozen=True)
class Row:
    method: str
    members: int
    views: int
    ours: float  # instances per second
    baseline: float
    workers: int  # of the baseline's better DataLoader
    limit: float  # instances per second that bandwidth allows

    @property
    def ratio(self) -> float:
        return self.ours / self.baseline

    @property
    def views_per_second(self) -> float:
        return self.ours * self.views

    def of_cmsc(self, rows: list[Row]) -> float | None:
        """Views per second as a share of CMSC's, where it was measured with as many members."""
        found = (r for r in rows if r.method == "cmsc" and r.members == self.members)
        cmsc = next(found, None)
        return self.views_per_second / cmsc.views_per_second if cmsc else None


def make_frames(
    patients: int, samples: int = 2500, names: tuple[str, ...] = ("II", "V2", "aVL", "aVR")
) -> Frames:
    """Random walks, two segments in some leads per patient; their content does not matter here."""
    draw = np.random.default_rng(0)
    leads, segments = len(names), 2
    steps = draw.integers(-20, 21, size=patients * leads * segments * samples, dtype=np.int16)
    signals = np.cumsum(steps, dtype=np.int64).astype(np.int16)
    frames = patients * segments
    recording = np.repeat(np.arange(patients), segments)
    segment = np.tile(np.arange(segments), patients)
    starts = recording[:, None] * leads * segments * samples + segment[:, None] * samples
    starts = starts + np.arange(leads) * segments * samples
    target = np.zeros((frames, 4), np.uint8)
    target[np.arange(frames), recording % 4] = 1
    return Frames(
        dataset="benchmark",
        content="",
        spec=FrameSpec(5.0, samples),
        leads=names,
        labels=("a", "b", "c", "d"),
        multilabel=False,
        batch_size=BATCH,
        split_seed=0,
        unit="mV",
        patient_ids=tuple(map(str, range(patients))),
        recording_ids=tuple(map(str, range(patients))),
        digests=np.arange(patients, dtype=np.uint64),
        age=np.full(patients, np.nan, np.float32),
        sex=np.zeros(patients, np.int8),
        signals=signals,
        starts=starts,
        scale=np.full((frames, leads), 1e-3, np.float32),
        recording=recording.astype(np.int32),
        patient=recording.astype(np.int32),
        segment=segment.astype(np.int32),
        split=(recording % 10 == 9).astype(np.int8),
        target=target,
    )


def make_engine(
    frames: Frames,
    method: str,
    encoder: str,
    members: int,
    device: torch.device,
    precision: Precision = "float32",
    stream: bool = False,
) -> Engine:
    plan = Plan(
        method,
        tuple(range(members)),
        encoder=encoder,
        precision=precision,
        settings=Settings(batch_size=BATCH),
    )
    task = PretrainingTask(frames, plan, device=device, stream=stream)
    keys = keyed_random.member_keys(list(range(members)), device)
    parameters = {k: v.to(device) for k, v in task.parameters(keys).items()}
    buffers = {k: v.to(device) for k, v in task.buffers(members).items()}
    layouts = Layout.from_tensors(parameters), Layout.from_tensors(buffers)
    fleet = Replicas.start(layouts[0].pack(parameters), layouts[1].pack(buffers))
    return Engine(task, fleet, layouts, keys, Settings(batch_size=BATCH))


def rate_of_ours(engine: Engine, members: int, seconds: float) -> float:
    """Instances per second of whole epochs."""

    def epoch() -> None:
        engine.train_epoch(lambda step, steps: None)
        if engine.keys.is_cuda:
            torch.cuda.synchronize()

    epoch()  # compiles, captures, warms up
    began, epochs = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        epoch()
        epochs += 1
    done = epochs * engine.instances([True] * members)
    return done / (time.perf_counter() - began)


def profile(engine: Engine, steps: int = 20) -> str:
    """A table of what runs in `steps` steps, longest first."""
    engine.train_epoch(lambda step, all_steps: None)
    on_gpu = engine.keys.is_cuda
    kind = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    with torch_profile(activities=[kind]) as seen:
        for _ in range(steps):
            engine._step()
        if on_gpu:
            torch.cuda.synchronize()
    order = "cuda_time_total" if on_gpu else "self_cpu_time_total"
    table = seen.key_averages().table(sort_by=order, row_limit=40, max_name_column_width=60)
    return f"{table}\n{len(seen.events() or []) / steps:.0f} events per step"


def bandwidth(device: torch.device) -> float:
    """Bytes per second, read and written, of a large copy."""
    size = 1 << (30 if device.type == "cuda" else 27)
    a, b = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    times = []
    for _ in range(5):
        began = time.perf_counter()
        a.copy_(b)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return 2 * size / min(times)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--methods", default=",".join(METHODS))
    options.add_argument("--members", default="1,5")
    options.add_argument("--encoder", choices=sorted(ENCODERS), default="cnn")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--patients", type=int, default=1500)
    options.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    options.add_argument("--repeats", type=int, default=2)
    options.add_argument("--precision", default="float32", help="of activations: or bfloat16")
    options.add_argument("--stream", action="store_true", help="signals stay on the host")
    options.add_argument("--profile", action="store_true", help="where a step's time goes, instead")
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    device = torch.device(given.device)
    frames, rows = make_frames(given.patients), []
    if given.profile:
        first = given.methods.split(",")[0], given.encoder, int(given.members.split(",")[-1])
        print(profile(make_engine(frames, *first, device, given.precision, given.stream)))
        return
    most = bandwidth(device)
    for method in given.methods.split(","):
        for members in map(int, given.members.split(",")):
            how = (device, given.precision, given.stream)
            engine = make_engine(frames, method, given.encoder, members, *how)
            ours, theirs = [], []
            for _ in range(given.repeats):
                ours.append(rate_of_ours(engine, members, given.seconds))
                theirs.append(
                    baseline.best_rate(frames, method, given.encoder, device, given.seconds)
                )
            best = max(theirs)
            assert isinstance(engine.task, PretrainingTask)
            views = engine.task.train.windows.shape[1] * len(engine.task.batches.chains)
            limit = most / (BYTES_A_VIEW * views)
            rows.append(
                Row(method, members, views, statistics.median(ours), best[0], best[1], limit)
            )
    if given.json:
        more = [
            {"ratio": r.ratio, "views_per_second": r.views_per_second, "of_cmsc": r.of_cmsc(rows)}
            for r in rows
        ]
        print(json.dumps([asdict(r) | m for r, m in zip(rows, more, strict=True)], indent=2))
        return
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}, batch {BATCH}")
    print(f"{'method':8} {'members':>7} {'views':>5} {'clocs/s':>12} {'ordinary/s':>11} "
          f"{'ratio':>8} {'bandwidth limit/s':>18} {'views/s':>12} {'of CMSC':>8}")  # fmt: skip
    for row in rows:
        share = row.of_cmsc(rows)
        of_cmsc = "" if share is None else f"{share:.2f}"
        print(f"{row.method:8} {row.members:7} {row.views:5} {row.ours:12,.0f} "
              f"{row.baseline:11,.0f} {row.ratio:7.1f}× {row.limit:18,.0f} "
              f"{row.views_per_second:12,.0f} {of_cmsc:>8}")  # fmt: skip


if __name__ == "__main__":
    main()
