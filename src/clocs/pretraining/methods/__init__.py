"""The methods: one module each, or one for a close family; `METHODS` holds all their rows.

| method     | an instance | its views                     | objective                            |
| ---------- | ----------- | ----------------------------- | ------------------------------------ |
| cmsc       | one lead    | consecutive segments          | `PatientNCE` with `segments`         |
| cmlc       | a frame     | all leads                     | `PatientNCE`                         |
| cmsmlc     | a frame     | segments × leads              | `PatientNCE` with `segments`         |
| simclr     | one lead    | two perturbed copies          | `NTXent`                             |
| byol       | one lead    | two perturbed copies          | `BYOL`                               |
| mtssl      | one lead    | the frame and its transforms  | `MultiTask`                          |
| supervised | one lead    | the frame                     | `Labels`                             |
| random     | one lead    | the frame                     | nothing is learned                   |
| random-bn  | one lead    | the frame                     | batch norm sees the training frames  |

For an encoder of many leads, an instance has all of them and so has each view, but `all leads`
become random subsets of them: two of a frame for cmlc, one of each segment for cmsmlc.
"""

from __future__ import annotations

from clocs.pretraining import Method
from clocs.registry import rows_in

METHODS = rows_in(__name__, Method)
