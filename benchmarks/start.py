"""How long answers take that need no computing, in processor time, against `import numpy`.

    python benchmarks/start.py [--repeats 5]

Prints the seconds of each command and their ratio to `python -c "import numpy"`, and for a
prediction of one file to `python -c "import torch"`; the least of several runs counts.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import clocs

ANSWERS = {
    "clocs --help": ["--help"],
    "clocs pretrain --help": ["pretrain", "--help"],
    "clocs info": ["info"],
    "clocs info ENCODER": ["info", "cmsc-chapman"],
    "clocs info CLASSIFIER": ["info", "rhythm-chapman"],
    "clocs info STORE": ["info", "STORE"],
    "a mistyped option": ["pretrain", "STORE", "--epoch", "3"],
    "a mistyped command": ["pretran"],
}


def seconds(words: list[str], repeats: int) -> float:
    """The least processor time of a Python process with these arguments."""
    found = []
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = (after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime)
        found.append(sum(used))
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        clocs.prepare("synthetic", out=store, patients=20)
        clocs.describe(store)
        file = Path(folder, "ecg.csv")
        signal = np.sin(np.arange(5000)[:, None] / 40) * np.ones(12)
        leads = "I,II,III,aVR,aVL,aVF,V1,V2,V3,V4,V5,V6"
        np.savetxt(file, signal, delimiter=",", header=leads, comments="")
        numpy = seconds(["-c", "import numpy"], repeats)
        print(f"{'import numpy':26}{numpy:7.2f} s")
        for name, words in ANSWERS.items():
            given = [str(store) if word == "STORE" else word for word in words]
            took = seconds(["-m", "clocs", *given], repeats)
            print(f"{name:26}{took:7.2f} s{took / numpy:7.2f} × import numpy")
        torch = seconds(["-c", "import torch"], repeats)
        print(f"{'import torch':26}{torch:7.2f} s")
        words = ["-m", "clocs", "predict", "rhythm-chapman", str(file), "--rate", "500"]
        took = seconds(words, repeats)
        print(f"{'clocs predict, one file':26}{took:7.2f} s{took / torch:7.2f} × import torch")


if __name__ == "__main__":
    main()
