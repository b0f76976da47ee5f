"""The 71 SCP-ECG statements of PTB-XL: which are diagnostic, of form or of rhythm, and classes.

As in the published `scp_statements.csv`, which is the same in all versions, and in its order.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

SUPERCLASSES: Final = ("NORM", "MI", "STTC", "CD", "HYP")

# statement: (superclass, subclass)
DIAGNOSTIC: Final = MappingProxyType(
    {
        "NDT": ("STTC", "STTC"),
        "NST_": ("STTC", "NST_"),
        "DIG": ("STTC", "STTC"),
        "LNGQT": ("STTC", "STTC"),
        "NORM": ("NORM", "NORM"),
        "IMI": ("MI", "IMI"),
        "ASMI": ("MI", "AMI"),
        "LVH": ("HYP", "LVH"),
        "LAFB": ("CD", "LAFB/LPFB"),
        "ISC_": ("STTC", "ISC_"),
        "IRBBB": ("CD", "IRBBB"),
        "1AVB": ("CD", "_AVB"),
        "IVCD": ("CD", "IVCD"),
        "ISCAL": ("STTC", "ISCA"),
        "CRBBB": ("CD", "CRBBB"),
        "CLBBB": ("CD", "CLBBB"),
        "ILMI": ("MI", "IMI"),
        "LAO/LAE": ("HYP", "LAO/LAE"),
        "AMI": ("MI", "AMI"),
        "ALMI": ("MI", "AMI"),
        "ISCIN": ("STTC", "ISCI"),
        "INJAS": ("MI", "AMI"),
        "LMI": ("MI", "LMI"),
        "ISCIL": ("STTC", "ISCI"),
        "LPFB": ("CD", "LAFB/LPFB"),
        "ISCAS": ("STTC", "ISCA"),
        "INJAL": ("MI", "AMI"),
        "ISCLA": ("STTC", "ISCA"),
        "RVH": ("HYP", "RVH"),
        "ANEUR": ("STTC", "STTC"),
        "RAO/RAE": ("HYP", "RAO/RAE"),
        "EL": ("STTC", "STTC"),
        "WPW": ("CD", "WPW"),
        "ILBBB": ("CD", "ILBBB"),
        "IPLMI": ("MI", "IMI"),
        "ISCAN": ("STTC", "ISCA"),
        "IPMI": ("MI", "IMI"),
        "SEHYP": ("HYP", "SEHYP"),
        "INJIN": ("MI", "IMI"),
        "INJLA": ("MI", "AMI"),
        "PMI": ("MI", "PMI"),
        "3AVB": ("CD", "_AVB"),
        "INJIL": ("MI", "IMI"),
        "2AVB": ("CD", "_AVB"),
    }
)
# The first four are diagnostic as well.
FORM: Final = (
    *("NDT", "NST_", "DIG", "LNGQT", "ABQRS", "PVC", "STD_", "VCLVH", "QWAVE", "LOWT", "NT_"),
    *("PAC", "LPR", "INVT", "LVOLT", "HVOLT", "TAB_", "STE_", "PRC(S)"),
)
RHYTHM: Final = (
    *("SR", "AFIB", "STACH", "SARRH", "SBRAD", "PACE", "SVARR", "BIGU", "AFLT", "SVTAC"),
    *("PSVT", "TRIGU"),
)

# The classes of each set of labels, in order.
LABEL_SETS: Final = MappingProxyType(
    {
        "superclass": SUPERCLASSES,
        "subclass": tuple(dict.fromkeys(subclass for _, subclass in DIAGNOSTIC.values())),
        "diagnostic": tuple(DIAGNOSTIC),
        "form": FORM,
        "rhythm": RHYTHM,
        "all": tuple(dict.fromkeys((*DIAGNOSTIC, *FORM, *RHYTHM))),
    }
)


def label_of(statement: str, label_set: str) -> str | None:
    """The label that a statement gives in a set of labels; None where it gives none."""
    if label_set in ("superclass", "subclass"):
        classes = DIAGNOSTIC.get(statement)
        return classes and classes[label_set == "subclass"]
    return statement if statement in LABEL_SETS[label_set] else None
