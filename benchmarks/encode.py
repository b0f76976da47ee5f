"""Views per second while embedding, against the ordinary way of writing it.

    python benchmarks/encode.py [--patients 600] [--device cpu] [--seconds 4]

Ours is what `embed_instances` does: windows gathered and normalized on the device, the encoder in
evaluation mode. The ordinary way is `train_baseline.py`'s Dataset, DataLoader (0 or 2 workers, the
better one counts) and torch's own modules. Both sides run alternately on the same frames.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch.utils.data import DataLoader

import train_baseline as baseline
from clocs.encoders.cnn import block_implementation
from clocs.encoders.make import make_encoder
from clocs.frames.frames import Frames
from clocs.kernels import keyed_random
from clocs.training.signals import Signals
from train import make_frames

AT_ONCE = 2048


@torch.no_grad()
def ours(frames: Frames, device: torch.device, seconds: float) -> float:
    encoder = make_encoder("cnn", embedding_dim=128, samples=frames.spec.samples)
    keys = keyed_random.member_keys([0])
    weights = {k: v.to(device) for k, v in encoder.parameters(keys).items()}
    buffers = {k: v.to(device) for k, v in encoder.buffers(1).items()}
    signals = Signals.from_frames(frames, device)
    starts = torch.from_numpy(frames.starts.reshape(-1)).to(device)

    def embed() -> int:
        for some in starts.split(AT_ONCE):
            encoder.encode(weights, buffers, signals.normalized(some)[None]).sum().item()
        return len(starts)

    return _rate(embed, seconds)


@torch.no_grad()
def theirs(frames: Frames, device: torch.device, seconds: float, workers: int) -> float:
    model = baseline.Network("cnn").to(device).eval()
    loader = DataLoader(
        baseline.Items(frames, "cmlc"), baseline.BATCH, drop_last=True, num_workers=workers
    )

    def embed() -> int:
        done = 0
        for x, _ in loader:
            model(x.to(device).flatten(0, 1)).sum().item()
            done += x.shape[0] * x.shape[1]
        return done

    return _rate(embed, seconds)


def _rate(embed: Callable[[], int], seconds: float) -> float:
    embed()
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        done += embed()
    return done / (time.perf_counter() - began)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--patients", type=int, default=600)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    given = options.parse_args()
    frames, device = make_frames(given.patients), torch.device(given.device)
    fast = ours(frames, device, given.seconds)
    slow = max(theirs(frames, device, given.seconds, workers) for workers in (0, 2))
    print(f"{device}, {torch.get_num_threads()} threads, kernel {block_implementation(device)}: "
          f"{fast:,.0f} views/s, ordinary {slow:,.0f}, {fast / slow:.1f}×")  # fmt: skip


if __name__ == "__main__":
    main()
