"""Model selection: pure rules that pick a job and a step from records."""

from shiftbed.selection.evidence import Choice, Column, Evidence, JobRecords
from shiftbed.selection.rules import SELECTIONS, Selection

__all__ = ["SELECTIONS", "Choice", "Column", "Evidence", "JobRecords", "Selection"]
