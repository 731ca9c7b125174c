"""Who trains and who is tested: splits, tasks, and the protocols that list them."""

from shiftbed.protocols.named import PROTOCOLS
from shiftbed.protocols.specs import Fixed, Flexible, LeaveOut, TargetTrained, TaskSpec, make_task, spec_of
from shiftbed.protocols.splits import Split, Task, holdout

__all__ = [
    "PROTOCOLS",
    "Fixed",
    "Flexible",
    "LeaveOut",
    "Split",
    "TargetTrained",
    "Task",
    "TaskSpec",
    "holdout",
    "make_task",
    "spec_of",
]
