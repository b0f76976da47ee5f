"""Where the named datasets are published, under which license, and how they are cited.

All addresses are here. Facts that could not be confirmed are left out: a size of 0 is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

CC_BY = "CC BY 4.0"
ODC_BY = "ODC-By 1.0"
_PHYSIONET = "https://physionet.org"
_STATIC = f"{_PHYSIONET}/static/published-projects"
_FIGSHARE = "https://figshare.com/ndownloader/files"


@dataclass(frozen=True, slots=True)
class Publication:
    """One published dataset.

    Attributes:
        name: Of the dataset in clocs.
        title: As published; what it is, where it has no title.
        version: As published; '' where there is none.
        page: For people.
        license: '' where the publisher names none.
        citation: Of the paper or the publication that describes it.
        archives: Files to fetch: their names here, and their addresses.
        folder: Address of a folder whose files `sums` lists; '' where there is none.
        sums: Name of the list of sha256 there.
        only: What to fetch of the folder: files, or folders with '/' at the end; all where empty.
        size: Bytes of the archives (of the folder, where there are none), as published or reported;
            0 where unknown.
    """

    name: str
    title: str
    version: str
    page: str
    license: str
    citation: str
    archives: tuple[tuple[str, str], ...] = ()
    folder: str = ""
    sums: str = "SHA256SUMS.txt"
    only: tuple[str, ...] = ()
    size: int = 0


_ROWS = (
    Publication(
        name="cardiology",
        title="Cardiologist-annotated test set of ambulatory ECGs (iRhythm)",
        version="May 2017",
        page="https://irhythm.github.io/cardiol_test_set/",
        license="",
        citation="Hannun AY, Rajpurkar P, Haghpanahi M, et al. Cardiologist-level arrhythmia "
        "detection and classification in ambulatory electrocardiograms using a deep neural "
        "network. Nature Medicine 25, 2019.",
        archives=(
            (
                "CARDIOL_MAY_2017.zip",
                "https://irhythm.github.io/public_data/CARDIOL_MAY_2017.zip",
            ),
        ),
        size=3_197_307,
    ),
    Publication(
        name="chapman",
        title="A 12-lead electrocardiogram database for arrhythmia research covering more than "
        "10,000 patients",
        version="2",
        page="https://figshare.com/collections/ChapmanECG/4560497/2",
        license=CC_BY,
        citation="Zheng J, Zhang J, Danioko S, et al. A 12-lead electrocardiogram database for "
        "arrhythmia research covering more than 10,000 patients. Scientific Data 7, 2020.",
        archives=(
            ("ECGDataDenoised.zip", f"{_FIGSHARE}/15652862"),
            ("Diagnostics.xlsx", f"{_FIGSHARE}/15653771"),
        ),
        size=2_010_000_000,
    ),
    Publication(
        name="mitbih",
        title="MIT-BIH Arrhythmia Database",
        version="1.0.0",
        page=f"{_PHYSIONET}/content/mitdb/1.0.0/",
        license=ODC_BY,
        citation="Moody GB, Mark RG. The impact of the MIT-BIH Arrhythmia Database. IEEE "
        "Engineering in Medicine and Biology 20(3):45-50, 2001.",
        archives=(
            (
                "mit-bih-arrhythmia-database-1.0.0.zip",
                f"{_STATIC}/mitdb/mit-bih-arrhythmia-database-1.0.0.zip",
            ),
        ),
        folder=f"{_PHYSIONET}/files/mitdb/1.0.0/",
        size=73_500_000,
    ),
    Publication(
        name="physionet2017",
        title="AF Classification from a Short Single Lead ECG Recording: The PhysioNet/Computing "
        "in Cardiology Challenge 2017",
        version="1.0.0",
        page=f"{_PHYSIONET}/content/challenge-2017/1.0.0/",
        license=ODC_BY,
        citation="Clifford GD, Liu C, Moody B, et al. AF classification from a short single lead "
        "ECG recording: The PhysioNet/Computing in Cardiology Challenge 2017. Computing in "
        "Cardiology 44, 2017. doi:10.22489/CinC.2017.065-469",
        folder=f"{_PHYSIONET}/files/challenge-2017/1.0.0/",
        only=("training2017.zip", "REFERENCE-v3.csv"),
    ),
    Publication(
        name="physionet2020",
        title="Classification of 12-lead ECGs: The PhysioNet/Computing in Cardiology Challenge "
        "2020 (the part of CPSC 2018)",
        version="1.0.2",
        page=f"{_PHYSIONET}/content/challenge-2020/1.0.2/",
        license=CC_BY,
        citation="Perez Alday EA, Gu A, Shah A, et al. Classification of 12-lead ECGs: The "
        "PhysioNet/Computing in Cardiology Challenge 2020 (version 1.0.2). PhysioNet, 2022. "
        "doi:10.13026/dvyd-kd57",
        folder=f"{_PHYSIONET}/files/challenge-2020/1.0.2/",
        only=("training/cpsc_2018/",),
    ),
    Publication(
        name="physionet2021",
        title="Will Two Do? Varying Dimensions in Electrocardiography: The PhysioNet/Computing in "
        "Cardiology Challenge 2021",
        version="1.0.3",
        page=f"{_PHYSIONET}/content/challenge-2021/1.0.3/",
        license=CC_BY,
        citation="Reyna MA, Sadr N, Perez Alday EA, et al. Will Two Do? Varying Dimensions in "
        "Electrocardiography: The PhysioNet/Computing in Cardiology Challenge 2021. Computing in "
        "Cardiology 48, 2021. doi:10.23919/CinC53138.2021.9662687",
        folder=f"{_PHYSIONET}/files/challenge-2021/1.0.3/",
        only=("training/",),
    ),
    Publication(
        name="ptbxl",
        title="PTB-XL, a large publicly available electrocardiography dataset",
        version="1.0.3",
        page=f"{_PHYSIONET}/content/ptb-xl/1.0.3/",
        license=CC_BY,
        citation="Wagner P, Strodthoff N, Bousseljot RD, et al. PTB-XL, a large publicly available "
        "electrocardiography dataset. Scientific Data 7:154, 2020. "
        "doi:10.1038/s41597-020-0495-6; version 1.0.3: PhysioNet, 2022, doi:10.13026/kfzx-aw45",
        archives=(
            (
                "ptb-xl-a-large-publicly-available-electrocardiography-dataset-1.0.3.zip",
                f"{_STATIC}/ptb-xl/"
                "ptb-xl-a-large-publicly-available-electrocardiography-dataset-1.0.3.zip",
            ),
        ),
        folder=f"{_PHYSIONET}/files/ptb-xl/1.0.3/",
        size=1_700_000_000,
    ),
)
PUBLICATIONS: Final = MappingProxyType({row.name: row for row in _ROWS})
