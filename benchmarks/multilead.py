"""Views per second while an encoder of many leads pre-trains, and recordings per second embedded.

    python benchmarks/multilead.py [--device cpu] [--seconds 10] [--repeats 3] …

Every way trains the same network on the same recordings (twelve leads, 10 s at 100 Hz) by CMSMLC:
two random crops of 5 s, each through 1 to 3 random leads, a projection head, the contrastive loss,
AdamW. A batch has 512 recordings, thus 1,024 views. The ways run alternately, and the median of
each counts; start-up and compilation do not:

ordinary    a DataLoader that cuts with numpy, torch's modules in eager mode, float32
eager       the same network and mode, with the data gathered on the device; float32 (in which
            torch lets convolutions use TF32) and bfloat16 (autocast)
clocs       `clocs pretrain`: one captured step, in float32 and bfloat16, compiled or not

FLOPs are twice the multiply-adds of a forward pass, three times that for training. A recording
that is embedded, on the CPU, is two frames of 5 s in twelve leads.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

import multilead_baseline as baseline
from clocs.encoders.make import make_encoder
from clocs.frames.frames import Frames
from clocs.kernels import keyed_random
from clocs.pretraining.plan import Plan, Precision
from clocs.pretraining.task import PretrainingTask
from clocs.training import Settings
from clocs.training.loop import Engine
from clocs.training.replicas import Layout, Replicas
from train import make_frames, profile, rate_of_ours

LEADS = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")
SAMPLES, DIM = 500, 640


@dataclass(frozen=True)
class Setting:
    """What all ways share."""

    frames: Frames
    batch: int
    dropout: float
    device: torch.device
    seconds: float
    workers: tuple[int, ...]
    encoder: str = "multilead"

    def network(self) -> baseline.Network:
        return baseline.Network(len(LEADS), self.dropout, DIM).to(self.device)

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def ordinary(self) -> float:
        """With the best number of DataLoader workers."""
        return max(
            baseline.rate(
                baseline.loaded(self.frames, self.batch, workers, self.device),
                self.network(),
                self.seconds,
                sync=self.sync,
            )
            for workers in self.workers
        )

    def eager(self, *, bfloat16: bool) -> float:
        batches = baseline.gathered(self.frames, self.batch, self.device)
        return baseline.rate(
            batches, self.network(), self.seconds, bfloat16=bfloat16, sync=self.sync
        )

    def engine(self, precision: Precision) -> Engine:
        settings = Settings(
            batch_size=self.batch, lr=1e-3, optimizer="adamw", weight_decay=0.01,
            schedule="cosine", warm_up=0.05,
        )  # fmt: skip
        plan = Plan(
            "cmsmlc",
            encoder=self.encoder,
            embedding_dim=DIM,
            dropout=self.dropout,
            precision=precision,
            options={"crops": "random"},
            settings=settings,
        )
        task = PretrainingTask(self.frames, plan, device=self.device)
        keys = keyed_random.member_keys([0], self.device)
        parameters = {k: v.to(self.device) for k, v in task.parameters(keys).items()}
        buffers = {k: v.to(self.device) for k, v in task.buffers(1).items()}
        layouts = Layout.from_tensors(parameters), Layout.from_tensors(buffers)
        fleet = Replicas.start(layouts[0].pack(parameters), layouts[1].pack(buffers))
        return Engine(task, fleet, layouts, keys, settings)

    def clocs(self, precision: Precision, *, compiled: bool = True) -> Callable[[], float]:
        """Views per second; compiled and captured when first measured."""
        engines: list[Engine] = []

        def rate() -> float:
            os.environ["CLOCS_COMPILE"] = "1" if compiled else "0"
            if not engines:
                engines.append(self.engine(precision))
            return 2 * rate_of_ours(engines[0], 1, self.seconds)

        return rate


def flops_of_a_view() -> float:
    """Of training on it."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        baseline.Network(len(LEADS), 0.0, DIM)(torch.zeros(2, len(LEADS), SAMPLES))
    return 3 * float(counter.get_total_flops()) / 2


def embedding_rates(encoder: str, recordings: int, seconds: float) -> dict[str, tuple[float, ...]]:
    """Recordings per second on the CPU, and per second of processor time; the best of each."""
    ours = make_encoder(encoder, embedding_dim=DIM, samples=SAMPLES, leads=LEADS)
    weights, buffers = ours.parameters(keyed_random.member_keys([0])), ours.buffers(1)
    network = baseline.Network(len(LEADS), 0.0, DIM).eval()
    x = torch.randn(1, 2 * recordings, len(LEADS), SAMPLES)
    ways: dict[str, Callable[[], object]] = {
        "clocs": lambda: ours.encode(weights, buffers, x),
        "torch's modules": lambda: network.embed(x[0]),
    }
    best: dict[str, tuple[float, ...]] = dict.fromkeys(ways, (0.0, 0.0))
    began = time.perf_counter()
    with torch.no_grad():
        for way in ways.values():
            way()
        while time.perf_counter() - began < seconds or not all(map(all, best.values())):
            for name, way in ways.items():
                start, used = time.perf_counter(), time.process_time()
                way()
                spent = time.perf_counter() - start, time.process_time() - used
                wall, processor = (recordings / each for each in spent)
                best[name] = max(best[name][0], wall), max(best[name][1], processor)
    return best


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--encoder", default="multilead", help="of clocs")
    options.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--recordings", type=int, default=8192)
    options.add_argument("--batch", type=int, default=512, help="recordings")
    options.add_argument("--dropout", type=float, default=0.0)
    options.add_argument("--workers", default="0,2,8", help="of DataLoaders; the best counts")
    options.add_argument("--ways", default="", help="only those whose name contains one of these")
    options.add_argument("--peak", type=float, default=989.0, help="TFLOP/s: bfloat16 of an H200")
    options.add_argument("--embed", type=int, default=64, help="recordings at a time; 0: none")
    options.add_argument("--cudnn-benchmark", action="store_true", help="let cuDNN try its kernels")
    options.add_argument("--profile", action="store_true", help="where a step's time goes, instead")
    given = options.parse_args()
    torch.backends.cudnn.benchmark = given.cudnn_benchmark
    setting = Setting(
        make_frames(given.recordings, SAMPLES, LEADS),
        given.batch,
        given.dropout,
        torch.device(given.device),
        given.seconds,
        tuple(map(int, given.workers.split(","))),
        given.encoder,
    )
    if given.profile:
        on_gpu = setting.device.type == "cuda"
        print(profile(setting.engine("bfloat16" if on_gpu else "float32")))
        return
    ways: dict[str, Callable[[], float]] = {
        "ordinary float32": setting.ordinary,
        "eager float32": lambda: setting.eager(bfloat16=False),
        "eager bfloat16": lambda: setting.eager(bfloat16=True),
        "clocs float32": setting.clocs("float32"),
        "clocs bfloat16 not compiled": setting.clocs("bfloat16", compiled=False),
        "clocs bfloat16": setting.clocs("bfloat16"),
    }
    if setting.device.type == "cpu":  # where bfloat16 and compiling are for nothing
        ways = {name: way for name, way in ways.items() if name.endswith("float32")}
    if given.ways:
        ways = {n: way for n, way in ways.items() if any(p in n for p in given.ways.split(","))}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(given.repeats):
        for name, way in ways.items():
            found[name].append(way())
    rates = {name: statistics.median(rates) for name, rates in found.items()}
    flops = flops_of_a_view()
    device = torch.cuda.get_device_name() if setting.device.type == "cuda" else "CPU"
    print(f"{device}, {torch.get_num_threads()} threads, torch {torch.__version__}; batch "
          f"{given.batch}, dropout {given.dropout}; {flops / 1e9:.2f} GFLOP per view")  # fmt: skip
    columns = [name for name in ("ordinary float32", "eager float32", "eager bfloat16")
               if name in rates]  # fmt: skip
    print(f"{'':28} {'views/s':>10} {'of peak':>8} "
          + " ".join(f"{'× ' + name:>18}" for name in columns))  # fmt: skip
    for name, rate in rates.items():
        share = rate * flops / (given.peak * 1e12)
        ratios = " ".join(f"{rate / rates[column]:18.2f}" for column in columns)
        print(f"{name:28} {rate:10,.0f} {share:8.2%} {ratios}")
    if given.embed:
        for name, (wall, processor) in embedding_rates(
            given.encoder, given.embed, given.seconds
        ).items():
            print(f"embedded on the CPU by {name:16} {wall:6,.0f} recordings/s, {processor:6,.0f} "
                  "per second of processor time")  # fmt: skip


if __name__ == "__main__":
    main()
