"""Bytes, processor time and embeddings of an encoder in ONNX with weights of 8 bits, beside 32.

`python benchmarks/int8.py cmsmlc-voltage stores/physionet2020` prints one row of each.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime

import clocs
from clocs.models.explain import module_input


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("encoder")
    parser.add_argument("store", type=Path)
    parser.add_argument("--recordings", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    chosen = parser.parse_args()
    encoder, store = clocs.load(chosen.encoder), clocs.open_store(chosen.store)
    assert isinstance(encoder, clocs.Checkpoint)
    places = np.linspace(0, len(store) - 1, chosen.recordings).astype(int).tolist()
    samples = round(chosen.seconds * encoder.card.frame.rate)
    ecgs = [module_input(encoder, store.recording(n))[None, :, :samples] for n in places]
    made = {}
    print("| | MB | ms of processor time | least cosine |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for to in ("onnx", "onnx-int8"):
            file = Path(folder, f"{to}.onnx")
            clocs.export(encoder, to=to, out=file)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            session = onnxruntime.InferenceSession(file, options)
            session.run(None, {"ecg": ecgs[0]})
            start = time.process_time()
            made[to] = np.concatenate([session.run(None, {"ecg": one})[0] for one in ecgs])
            spent = (time.process_time() - start) / len(ecgs)
            cosine = (made[to] * made["onnx"]).sum(axis=1).min()  # vectors have length 1
            print(f"| {to} | {file.stat().st_size / 1e6:.1f} | {1e3 * spent:.1f} | {cosine:.5f} |")


if __name__ == "__main__":
    main()
