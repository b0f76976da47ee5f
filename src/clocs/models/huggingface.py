"""`clocs.huggingface_dataset`: a store as a dataset of Hugging Face's `datasets`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clocs.errors import SettingError, with_extra
from clocs.frames.splits import PARTS, split_patients
from clocs.recording import with_derived
from clocs.store.store import Store, as_store


def huggingface_dataset(
    store: Store | Path | str,
    *,
    split: str | None = None,
    split_seed: int = 0,
    leads: Sequence[str] | None = None,
    streaming: bool = False,
    cache: Path | str | None = None,
) -> Any:
    """The recordings of a store as a `datasets.Dataset`, one row each.

    The columns are id, patient, leads, rate (Hz), unit, signal (leads, samples; nan in gaps),
    labels, age, sex, taken and split. Recordings are read one at a time and written to an Arrow
    file in the cache of `datasets`, from which rows are mapped; the same call uses it again.

    Args:
        store: Prepared recordings.
        split: Only this part: 'train', 'validation' or 'test'; all where None. Official folds
            decide where the store has some, else the hash of patients.
        split_seed: Random seed for the patient split.
        leads: Only these, and only recordings that have one of them; all leads where None.
        streaming: Give a `datasets.IterableDataset`, which reads the store as it goes and writes
            nothing.
        cache: Folder for the Arrow file; that of `datasets` by default.

    Returns:
        A `datasets.Dataset` or, where streamed, a `datasets.IterableDataset`.
    """
    try:
        import datasets as library
    except ImportError as error:
        raise SettingError(
            "a view for Hugging Face needs the package datasets, which is not installed; "
            + with_extra("huggingface")
        ) from error
    datasets: Any = library
    opened = as_store(store)
    if split is not None and split not in PARTS:
        raise SettingError(f"there is no split {split!r}; choose one of {', '.join(PARTS)}")
    several = datasets.Sequence
    features = datasets.Features(
        {
            "id": datasets.Value("string"),
            "patient": datasets.Value("string"),
            "leads": several(datasets.Value("string")),
            "rate": datasets.Value("float64"),
            "unit": datasets.Value("string"),
            "signal": several(several(datasets.Value("float32"))),
            "labels": several(datasets.ClassLabel(names=list(opened.manifest.labels)))
            if opened.manifest.labels
            else several(datasets.Value("string")),
            "age": datasets.Value("float64"),
            "sex": datasets.Value("string"),
            "taken": datasets.Value("string"),
            "split": datasets.Value("string"),
        }
    )
    arguments = {
        "path": str(opened.path),
        "content": opened.manifest.content_hash,  # so that the cache knows one store from another
        "split": split,
        "split_seed": split_seed,
        "leads": None if leads is None else opened.choose_leads(leads),
    }
    if streaming:
        kept = {"keep": opened}  # a temporary store lives as long as its object
        return datasets.IterableDataset.from_generator(
            _rows, features=features, gen_kwargs=arguments | kept
        )
    return datasets.Dataset.from_generator(
        _rows,
        features=features,
        gen_kwargs=arguments,
        cache_dir=None if cache is None else str(cache),
        writer_batch_size=16,  # recordings in memory
    )


def _rows(
    path: str,
    content: str,
    split: str | None,
    split_seed: int,
    leads: tuple[str, ...] | None,
    keep: Any = None,
) -> Iterator[dict[str, Any]]:
    store = as_store(path)
    known = set(store.manifest.labels)
    everyone = split_patients(store, split_seed=split_seed)
    part = everyone.part[everyone.recording]
    for number, recording in zip(part.tolist(), store.iter_recordings(), strict=True):
        if split not in (None, PARTS[number]):
            continue
        own = recording
        if leads is not None:
            had = [lead for lead in leads if lead in with_derived(recording.leads)]
            if not had:
                continue
            own = recording.select(had)
        yield {
            "id": own.id,
            "patient": own.patient,
            "leads": list(own.leads),
            "rate": own.rate,
            "unit": own.unit,
            "signal": own.signal.astype(np.float32),
            "labels": [label for label in own.labels if label in known],
            "age": own.age,
            "sex": own.sex,
            "taken": own.taken,
            "split": PARTS[number],
        }
