"""Model selection: pure rules that pick a job and a step from records."""

from shiftbed.selection.evidence import Companions, Evidence, cross_validating
from shiftbed.selection.records import CADENCE, Cell, Column, JobRecords, TaskRecords, Variant, cadence, tasks_of
from shiftbed.selection.rules import SELECTIONS, Choice, Selection, own_rule

__all__ = [
    "CADENCE",
    "SELECTIONS",
    "Cell",
    "Choice",
    "Column",
    "Companions",
    "Evidence",
    "JobRecords",
    "Selection",
    "TaskRecords",
    "Variant",
    "cadence",
    "cross_validating",
    "own_rule",
    "tasks_of",
]
