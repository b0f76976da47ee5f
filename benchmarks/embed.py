"""Recordings embedded a second: `clocs embed` against a plain loop over files, in one run.

    python benchmarks/embed.py [--recordings 2000] [--repeats 3]

The plain loop is what one writes first: wfdb.rdrecord, scipy's resample, min-max, and a forward
pass of torch's own modules for each file, without gradients. Both see the same WFDB files (12 leads
of 10 s at 500 Hz, simulated), the same four leads and the same weights, and must give the same
vectors. A store is the same recordings prepared once by `clocs prepare`. Medians of a few repeats,
all ways in turn. `clocs embed` also searches files, but not stores, for swapped electrodes.

Then one file per call, with the shipped encoder of twelve leads and a classifier on it, each named
rather than loaded: milliseconds per call once warm, against wfdb.rdrecord, scipy's resample and the
same encoder in torch's own modules.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.signal
import torch
import wfdb
from numpy.typing import NDArray
from torch import nn

import clocs
from clocs import Checkpoint, FrameSpec, Store
from clocs.formats.read import find_recordings, read_several
from clocs.frames.make import make_frames
from clocs.patients.embed import embed_levels, embed_recordings
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames

LEADS = ("II", "V2", "aVL", "aVR")
SPEC = FrameSpec(10.0)


def plain_network(checkpoint: Checkpoint) -> nn.Module:
    """The paper's encoder in torch's own modules, with the checkpoint's weights."""
    weights, buffers = checkpoint.weights, checkpoint.buffers
    layers: list[nn.Module] = []
    for i, (c_in, c_out) in enumerate(((1, 4), (4, 16), (16, 32)), start=1):
        conv, norm = nn.Conv1d(c_in, c_out, 7, stride=3, bias=False), nn.BatchNorm1d(c_out)
        kernel = weights[f"conv{i}.weight"][0].view(7, c_in, c_out)
        conv.weight.data = kernel.permute(2, 1, 0).contiguous()
        norm.weight.data, norm.bias.data = (weights[f"norm{i}.{n}"][0] for n in ("weight", "bias"))
        norm.running_mean = buffers[f"norm{i}.mean"][0].clone()
        norm.running_var = buffers[f"norm{i}.variance"][0].clone()
        layers += [conv, norm, nn.ReLU(), nn.MaxPool1d(2), nn.Dropout(0.1)]
    linear = nn.Linear(320, 128)
    own = weights["linear.weight"][0].view(10, 32, 128)  # place before channel; torch: the reverse
    linear.weight.data = own.permute(2, 1, 0).reshape(128, 320).contiguous()
    linear.bias.data = weights["linear.bias"][0].clone()
    return nn.Sequential(*layers, nn.Flatten(), linear, nn.ReLU()).eval()


@torch.no_grad()
def plain_loop(network: nn.Module, names: list[str]) -> NDArray[np.float32]:
    made = []
    for name in names:
        record = wfdb.rdrecord(name, channel_names=list(LEADS))
        order = [record.sig_name.index(lead) for lead in LEADS]
        signal = scipy.signal.resample(record.p_signal[:, order].T, SPEC.samples, axis=1)
        low, high = signal.min(axis=1, keepdims=True), signal.max(axis=1, keepdims=True)
        x = torch.from_numpy(((signal - low) / (high - low)).astype(np.float32))
        z = network(x[:, None]).numpy()
        unit = z / np.linalg.norm(z, axis=1, keepdims=True)
        mean = unit.mean(axis=0)
        made.append(mean / np.linalg.norm(mean))
    return np.stack(made)


def write_files(store: Store, folder: Path) -> list[str]:
    names = []
    for one in store.iter_recordings():
        wfdb.wrsamp(
            one.id.replace("/", "_"),
            fs=one.rate,
            units=["mV"] * len(one.leads),
            sig_name=list(one.leads),
            d_signal=one.digital.T.astype(np.int64),
            fmt=["16"] * len(one.leads),
            adc_gain=one.gain.tolist(),
            baseline=one.baseline.tolist(),
            write_dir=str(folder),
        )
        names.append(str(folder / one.id.replace("/", "_")))
    return names


def one_by_one(names: list[str], model: str) -> None:
    """Prints the median time of a call, all ways in turn for each file."""
    checkpoint = clocs.load(model)
    assert isinstance(checkpoint, Checkpoint)
    card, module = checkpoint.card, checkpoint.to_module()

    @torch.no_grad()
    def plain(name: str) -> None:
        record = wfdb.rdrecord(name, channel_names=list(checkpoint.encoder.leads))
        samples = round(record.sig_len / record.fs * card.frame.rate)
        signal = scipy.signal.resample(record.p_signal.T, samples, axis=1)
        module(torch.from_numpy(signal.astype(np.float32))[None])

    ways: dict[str, Callable[[str], object]] = {
        "plain loop, one file": plain,
        "clocs.embed, one file": lambda name: clocs.embed(model, f"{name}.hea"),
        "clocs.predict, one file": lambda name: clocs.predict("rhythm-chapman", f"{name}.hea"),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    for name in names:
        for way, act in ways.items():
            start = time.perf_counter()
            act(name)
            times[way].append(1000 * (time.perf_counter() - start))
    usual = {way: float(np.median(own[len(own) // 5 :])) for way, own in times.items()}
    for way, ms in usual.items():
        ratio = usual["plain loop, one file"] / ms
        print(f"{way:<24}{ms:>8.1f} ms a call  {ratio:>9.1f}×")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--recordings", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        store = clocs.prepare(
            "synthetic", out=place / "store", patients=options.recordings, recordings=1
        )
        one = store.recording(0)
        print(
            f"{len(store):,} recordings: {len(one.leads)} leads, {one.seconds:g} s, {one.rate:g} Hz"
        )
        plan = Plan(method="random-bn", seeds=(0,))
        frames = make_frames(store, spec=SPEC, leads=LEADS)
        checkpoint = pretrain_frames(frames, plan, place / "run", frame_to_use=SPEC)[0]
        (place / "files").mkdir()
        names = write_files(store, place / "files")
        network = plain_network(checkpoint)
        files = [Path(f"{name}.hea") for name in names]

        def of_store() -> NDArray[np.float32]:
            shutil.rmtree(store.path / "vectors", ignore_errors=True)  # they are kept
            made = embed_levels(checkpoint, store, levels=["recording"], spec=SPEC, leads=LEADS)
            return made["recording"].vectors

        ways: dict[str, Callable[[], NDArray[np.float32]]] = {
            "plain loop over files": lambda: plain_loop(network, names),
            "clocs embed FILES": lambda: (
                embed_recordings(
                    checkpoint, read_several(find_recordings(files)), leads=LEADS
                ).vectors
            ),
            "clocs embed STORE": of_store,
        }
        rates: dict[str, list[float]] = {way: [] for way in ways}
        vectors = {}
        for _ in range(options.repeats):  # in turn, so that a busy moment hits all of them
            for way, act in ways.items():
                start = time.perf_counter()
                vectors[way] = act()
                rates[way].append(len(names) / (time.perf_counter() - start))
        plain, expected = (one["plain loop over files"] for one in (rates, vectors))
        for way, found in rates.items():
            apart = float(np.abs(1 - np.einsum("nd,nd->n", vectors[way], expected)).max())
            ratio = np.median(found) / np.median(plain)
            words = f"{ratio:>5.1f}×  (best {max(found):,.0f})  vectors within {apart:.1e}"
            print(f"{way:<24}{np.median(found):>8,.0f} recordings/s {words}")
        one_by_one(names[:100], "cmsmlc-voltage")
        print(f"{torch.get_num_threads()} threads, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
