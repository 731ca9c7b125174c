"""Model selection: pure rules that pick a job and a step from records."""

from shiftbed.selection.evidence import Companions, Evidence, cross_validating
from shiftbed.selection.records import Cadence, Cell, Column, JobRecords, TaskRecords, Variant, tasks_of
from shiftbed.selection.rules import SELECTIONS, Choice, Selection, own_rule

__all__ = [
    "SELECTIONS",
    "Cadence",
    "Cell",
    "Choice",
    "Column",
    "Companions",
    "Evidence",
    "JobRecords",
    "Selection",
    "TaskRecords",
    "Variant",
    "cross_validating",
    "own_rule",
    "tasks_of",
]
