"""Model selection by predicted accuracy: the label-free rule that this room adds to those of `selection`."""

import numpy as np

from shiftbed.selection.evidence import VALIDATION, Evidence
from shiftbed.selection.records import Column
from shiftbed.selection.rules import selection

SOURCE_CONFIDENCE = VALIDATION._replace(metric="confidence")
TARGET_CONFIDENCE = Column("test", "in", "confidence")
WHOLE_CONFIDENCE = TARGET_CONFIDENCE._replace(part="all")  # of domains that are tested whole
COLUMNS = (VALIDATION, SOURCE_CONFIDENCE, TARGET_CONFIDENCE, WHOLE_CONFIDENCE)


@selection("predicted-accuracy", *COLUMNS, needs=("test batches",))
def predicted_accuracy(evidence: Evidence) -> np.ndarray:
    """The draw and step with the best accuracy on the test domain as predicted from its unlabelled images (DoC)."""
    part, whole = evidence.mean(TARGET_CONFIDENCE), evidence.mean(WHOLE_CONFIDENCE)
    lost = evidence.mean(SOURCE_CONFIDENCE) - np.where(np.isnan(part), whole, part)
    return evidence.mean(VALIDATION) - lost
