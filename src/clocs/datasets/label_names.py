"""What labels mean: full names, synonyms and, where known, SNOMED CT codes that link datasets.

`snomed` has the codes of the challenge's abbreviations; this table has words for them, and for the
labels of the other datasets. A label that is not in it means what it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from clocs.datasets import snomed


@dataclass(frozen=True)
class LabelName:
    """What a label means.

    Attributes:
        label: As in the dataset, 'I-AVB'.
        name: In words, 'First-degree atrioventricular block'; the label itself where unknown.
        synonyms: Other words for the same.
        code: SNOMED CT, '' where there is none; labels with the same one mean the same.
    """

    label: str
    name: str
    synonyms: tuple[str, ...] = ()
    code: str = ""


# label: name; synonyms. The label's code is that of `snomed`.
_CHALLENGE = """
AF: Atrial fibrillation; AFib; VHF
AFL: Atrial flutter; AFlut
BBB: Bundle branch block
Brady: Bradycardia; slow heart rate
LBBB: Left bundle branch block; complete LBBB
RBBB: Right bundle branch block; complete RBBB
IAVB: First-degree atrioventricular block; first-degree AV block; AVB I; 1st degree
IRBBB: Incomplete right bundle branch block
LAD: Left axis deviation
LAnFB: Left anterior fascicular block; LAFB; left anterior hemiblock
LPR: Prolonged PR interval
LQRSV: Low QRS voltages
LQT: Prolonged QT interval; long QT
NSIVCB: Nonspecific intraventricular conduction disorder; IVCD
NSR: Sinus rhythm; normal
PAC: Premature atrial contraction; atrial extrasystole; supraventricular premature beat; SVPB; APC
PR: Pacing rhythm; pacemaker; paced
PRWP: Poor R wave progression
PVC: Premature ventricular contraction; ventricular extrasystole; VPB; VES
QAb: Abnormal Q wave
RAD: Right axis deviation
SA: Sinus arrhythmia
SB: Sinus bradycardia; slow heart rate
STach: Sinus tachycardia; fast heart rate
TAb: Abnormal T wave
TInv: Inverted T wave; T wave inversion
AAR: Accelerated atrial escape rhythm
abQRS: Abnormal QRS complex
AED: Atrial escape beat
AIVR: Accelerated idioventricular rhythm
AJR: Accelerated junctional rhythm
ALR: ST segment changes of the anterior leads
AMI: Acute myocardial infarction; heart attack
AMIs: Acute myocardial ischaemia; ischemia
AnMIs: Anterior ischaemia; ischemia
AnMI: Anterior myocardial infarction; heart attack
AB: Atrial bigeminy
AFAFL: Atrial fibrillation and flutter
AH: Atrial hypertrophy
AP: Atrial pacing pattern; pacemaker
ARH: Atrial rhythm
ATach: Atrial tachycardia
AVB: Atrioventricular block; AV block; heart block
AVD: Atrioventricular dissociation; AV dissociation
AVJR: Atrioventricular junctional rhythm; nodal rhythm
AVNRT: Atrioventricular nodal re-entry tachycardia; supraventricular
AVRT: Atrioventricular re-entry tachycardia; supraventricular
BPAC: Blocked premature atrial contraction
BRU: Brugada syndrome
BTS: Brady-tachy syndrome; sick sinus
CAF: Chronic atrial fibrillation
CCR: Counterclockwise rotation
CD: Cardiac dysrhythmia
CHB: Complete heart block; third-degree AV block; 3rd degree
CHD: Coronary heart disease
CMI: Chronic myocardial ischaemia; ischemia
CR: Clockwise rotation
DIB: Diffuse intraventricular block
ERe: Early repolarisation; early repolarization
FB: Fusion beats
FQRS: Fragmented QRS complex
HF: Heart failure
HTV: High T voltage
IIAVB: Second-degree atrioventricular block; AV block; 2nd degree
IIAVBII: Mobitz type II atrioventricular block; second-degree AV block
IIs: Inferior ischaemia; ischemia
ILBBB: Incomplete left bundle branch block
IR: Idioventricular rhythm
JE: Junctional escape
JPC: Junctional premature complex
JTach: Junctional tachycardia
LAA: Left atrial abnormality
LAE: Left atrial enlargement
LAH: Left atrial hypertrophy
LIs: Lateral ischaemia; ischemia
LPFB: Left posterior fascicular block; left posterior hemiblock
LVH: Left ventricular hypertrophy
LVHV: Left ventricular high voltage
LVS: Left ventricular strain
MI: Myocardial infarction; heart attack
MIs: Myocardial ischaemia; ischemia
NSSTTA: Nonspecific ST-T abnormality
OldMI: Old myocardial infarction; heart attack
PAF: Paroxysmal atrial fibrillation
PSVT: Paroxysmal supraventricular tachycardia
PVT: Paroxysmal ventricular tachycardia
RAAb: Right atrial abnormality
RAb: Abnormal R wave
RAH: Right atrial hypertrophy
RAF: Rapid atrial fibrillation
RVH: Right ventricular hypertrophy
SAAWR: Wandering atrial pacemaker in the sinus node
SAB: Sinoatrial block
SARR: Sinus arrest
SND: Sinus node dysfunction; sick sinus
SPRI: Shortened PR interval
SQT: Short QT interval
STC: ST segment changes
STD: ST depression; ST segment
STE: ST elevation; ST segment
STIAb: ST interval abnormality
SVB: Supraventricular bigeminy
SVT: Supraventricular tachycardia
TIA: Transient ischaemic attack; ischemic
TPW: Tall P wave
UAb: Abnormal U wave
VBig: Ventricular bigeminy
VEB: Ventricular ectopic beats; premature ventricular contraction; extrasystole
VEsB: Ventricular escape beat
VEsR: Ventricular escape rhythm
VF: Ventricular fibrillation
VFL: Ventricular flutter
VH: Ventricular hypertrophy
VPEx: Ventricular pre-excitation
VPP: Ventricular pacing pattern; pacemaker
VTach: Ventricular tachycardia
VTrig: Ventricular trigeminy
WAP: Wandering atrial pacemaker
WPW: Wolff-Parkinson-White syndrome; pre-excitation
"""
# dataset: label = the challenge's with the same meaning, or label: name; synonyms; or both, where
# the label holds more than the challenge's.
_DATASETS = {
    "chapman": """
AFIB = AF: Atrial fibrillation or flutter; AFL
GSVT: Sinus or other supraventricular tachycardia; SVT; sinus tachycardia; atrial tachycardia; AVNRT
SR = NSR: Sinus rhythm, regular or irregular; sinus arrhythmia
""",
    "synthetic": """
AFIB = AF
SR = NSR
""",
    "physionet2020": """
I-AVB = IAVB
Normal = NSR
""",
    "physionet2017": """
N = NSR
A = AF
O: Other rhythm
~: Too noisy to classify; noise
""",
    "cardiology": """
AFIB: Atrial fibrillation or flutter; AF; AFL
AVB: Second- or third-degree atrioventricular block; AV block; heart block
BIGEMINY = VBig
EAR: Ectopic atrial rhythm
IVR = IR
JUNCTIONAL = AVJR
NOISE: Noise
NSR = NSR
TRIGEMINY = VTrig
VT = VTach
WENCKEBACH: Wenckebach block; Mobitz type I; second-degree atrioventricular block; AV block
""",
    "mitbih": """
N: Sinus rhythm or a normal beat; normal; bundle branch block
AB = AB
AFIB = AF
AFL = AFL
B = VBig
BII = IIAVB
IVR = IR
NOD = AVJR
P = PR
PREX = VPEx
SBR = SB
SVTA: Supraventricular tachyarrhythmia; SVT
T = VTrig
VFL = VFL
VT = VTach
S: Supraventricular ectopic beat; PAC
V: Ventricular ectopic beat; PVC
F: Fusion of a ventricular and a normal beat
Q: Paced or unclassifiable beat; pacemaker
""",
    "ptbxl": """
NORM: Normal ECG
MI = MI
STTC: ST-T change
CD: Conduction disturbance; bundle branch block; atrioventricular block
HYP: Hypertrophy
1AVB = IAVB
2AVB = IIAVB
3AVB = CHB
_AVB: Atrioventricular block; AV block; heart block
ABQRS = abQRS
AFIB = AF
AFLT = AFL
ALMI: Anterolateral myocardial infarction; heart attack
AMI: Anterior myocardial infarction; heart attack
ANEUR: ST-T changes of a ventricular aneurysm
ASMI: Anteroseptal myocardial infarction; heart attack
BIGU: Bigeminal pattern of unknown origin; bigeminy
CLBBB = LBBB
CRBBB = RBBB
DIG: Digitalis effect
EL: Electrolytic disturbance or drug
HVOLT: High QRS voltage
ILBBB = ILBBB
ILMI: Inferolateral myocardial infarction; heart attack
IMI: Inferior myocardial infarction; heart attack
INJAL: Subendocardial injury in anterolateral leads
INJAS: Subendocardial injury in anteroseptal leads
INJIL: Subendocardial injury in inferolateral leads
INJIN: Subendocardial injury in inferior leads
INJLA: Subendocardial injury in lateral leads
INVT = TInv
IPLMI: Inferoposterolateral myocardial infarction; heart attack
IPMI: Inferoposterior myocardial infarction; heart attack
IRBBB = IRBBB
ISCA: Ischaemia in anterior leads; ischemia
ISCAL: Ischaemia in anterolateral leads; ischemia
ISCAN: Ischaemia in anterior leads; ischemia
ISCAS: Ischaemia in anteroseptal leads; ischemia
ISCI: Ischaemia in inferior leads; ischemia
ISCIL: Ischaemia in inferolateral leads; ischemia
ISCIN: Ischaemia in inferior leads; ischemia
ISCLA: Ischaemia in lateral leads; ischemia
ISC_: Nonspecific ischaemia; ischemia
IVCD = NSIVCB
LAFB = LAnFB
LAFB/LPFB: Left fascicular block; hemiblock
LAO/LAE: Left atrial overload or enlargement
LMI: Lateral myocardial infarction; heart attack
LNGQT = LQT
LOWT: Low T wave
LPFB = LPFB
LPR = LPR
LVH = LVH
LVOLT = LQRSV
NDT: Nondiagnostic T wave abnormality
NST_: Nonspecific ST change
NT_: Nonspecific T wave change
PAC = PAC
PACE = PR
PMI: Posterior myocardial infarction; heart attack
PRC(S): Premature complexes; extrasystole
PSVT = PSVT
PVC = PVC
QWAVE = QAb
RAO/RAE: Right atrial overload or enlargement
RVH = RVH
SARRH = SA
SBRAD = SB
SEHYP: Septal hypertrophy
SR = NSR
STACH = STach
STD_ = STD
STE_ = STE
SVARR: Supraventricular arrhythmia
SVTAC = SVT
TAB_ = TAb
TRIGU: Trigeminal pattern of unknown origin; trigeminy
VCLVH: Voltage criteria for left ventricular hypertrophy
WPW = WPW
""",
}


def _parsed(text: str, known: Mapping[str, LabelName]) -> dict[str, LabelName]:
    made = {}
    for line in text.strip().splitlines():
        label, equal, other = line.partition(" = ")
        if equal:
            other, _, words = other.partition(": ")
            made[label] = _called(label, known[other])
            if words:
                name, *more = words.split("; ")
                both = (*made[label].synonyms, *more)
                made[label] = replace(made[label], name=name, synonyms=both)
        else:
            label, _, words = line.partition(": ")
            name, *synonyms = words.split("; ")
            code = "" if known else snomed.CLASSES[label]
            made[label] = LabelName(label, name, tuple(synonyms), code)
    return made


def _called(label: str, same: LabelName) -> LabelName:
    synonyms = same.synonyms if label == same.label else (same.label, *same.synonyms)
    return LabelName(label, same.name, synonyms, same.code)


_SHARED: Final = _parsed(_CHALLENGE, {})
_OWN: Final = {dataset: _parsed(text, _SHARED) for dataset, text in _DATASETS.items()}


def meanings(labels: Iterable[str], dataset: str) -> dict[str, str]:
    """Labels of a dataset in words; a label of a dataset that is not published is its own name."""
    known = dataset in _OWN or dataset == "physionet2021"
    return {label: label_name(label, dataset).name if known else label for label in labels}


def label_name(label: str, dataset: str = "") -> LabelName:
    """What a label means in a dataset; where the dataset does not say, what it usually means."""
    tables = [_OWN.get(dataset, {}), _SHARED]
    if len(label) > 1:  # single letters mean something else elsewhere
        tables += _OWN.values()
    for table in tables:
        if label in table:
            return table[label]
    name = snomed.LABELS.get(label, "")  # a code
    return _called(label, _SHARED[name]) if name in _SHARED else LabelName(label, label)
