from __future__ import annotations

import pytest

from clocs.datasets.cardiology import Cardiology
from clocs.datasets.chapman import Chapman
from clocs.datasets.label_names import LABEL_SETS, SCORED, LabelName, label_name, meanings
from clocs.datasets.mitbih import BEATS, RHYTHMS
from clocs.datasets.physionet import CODES, PhysioNet2017


@pytest.mark.parametrize(
    ("dataset", "labels"),
    [
        ("chapman", Chapman.labels),
        ("physionet2017", PhysioNet2017.labels),
        ("physionet2020", tuple(CODES)),
        ("physionet2021", tuple(SCORED)),
        ("cardiology", Cardiology.labels),
        ("mitbih", (*RHYTHMS, *BEATS)),
        ("ptbxl", tuple(label for labels in LABEL_SETS.values() for label in labels)),
    ],
)
def test_every_label_of_a_published_dataset_has_a_name_in_words(
    dataset: str, labels: tuple[str, ...]
) -> None:
    for label in labels:
        found = label_name(label, dataset)
        assert found.label == label
        assert found.name.lower() != label.lower() or label == "NOISE"


def test_labels_of_different_datasets_are_linked_by_their_code() -> None:
    fibrillation = [("AFIB", "chapman"), ("AF", "physionet2020"), ("A", "physionet2017")]
    assert {label_name(*one).code for one in fibrillation} == {SCORED["AF"]}
    assert {label_name(*one).name for one in fibrillation[1:]} == {"Atrial fibrillation"}
    assert label_name("Normal", "physionet2020").code == label_name("SR", "chapman").code
    assert label_name("270492004").name == "First-degree atrioventricular block"


def test_a_class_that_merges_rhythms_says_so() -> None:
    found = meanings(Chapman.labels, "chapman")
    assert found["AFIB"] == "Atrial fibrillation or flutter"
    assert found["GSVT"] == "Sinus or other supraventricular tachycardia"
    assert {"AF", "AFL"} <= set(label_name("AFIB", "chapman").synonyms)
    assert meanings(["AB", "sick"], "mine") == {"AB": "AB", "sick": "sick"}  # nothing is guessed


def test_a_label_means_what_its_own_dataset_says() -> None:
    assert label_name("AMI", "ptbxl").name == "Anterior myocardial infarction"
    assert label_name("AMI", "physionet2021").name == "Acute myocardial infarction"
    assert label_name("A", "mine") == LabelName("A", "A")
