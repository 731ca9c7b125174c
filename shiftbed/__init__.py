"""ShiftBed: a testbed for machine learning under distribution shift.

The verbs of the command line are functions here. Each is imported when it is first used, so that `import shiftbed`
is quick.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_VERBS = {
    "prepare": "shiftbed.data.prepare",
    "look": "shiftbed.data.look",
    "load": "shiftbed.training.model",
    "train": "shiftbed.sweeps.verbs",
    "sweep": "shiftbed.sweeps.verbs",
    "status": "shiftbed.sweeps.records",
    "Request": "shiftbed.sweeps.plan",
    "benchmark": "shiftbed.benchmarks",
    "measure_shift": "shiftbed.shift.measure",
    "predict_accuracy": "shiftbed.accuracy.predict",
    "predict_sweep": "shiftbed.accuracy.sweep",
    "judge_methods": "shiftbed.accuracy.study",
    "audit_sweep": "shiftbed.audit.verbs",
    "unblind": "shiftbed.sweeps.blind",
    "read_tables": "shiftbed.audit.ledger",
    "best": "shiftbed.report.choosing",
    "best_everywhere": "shiftbed.report.choosing",
    "predictions": "shiftbed.report.models",
    "figure": "shiftbed.report.figures",
    "write_page": "shiftbed.report.page",
    "compare": "shiftbed.report.compare",
    "bundle": "shiftbed.sweeps.bundle",
    "merge": "shiftbed.sweeps.bundle",
    "import_domainbed": "shiftbed.sweeps.domainbed_format",
    "export_domainbed": "shiftbed.sweeps.domainbed_format",
    "ShiftbedError": "shiftbed.errors",
}
__all__ = [
    "Request",
    "ShiftbedError",
    "audit_sweep",
    "benchmark",
    "best",
    "best_everywhere",
    "bundle",
    "compare",
    "export_domainbed",
    "figure",
    "import_domainbed",
    "judge_methods",
    "load",
    "look",
    "measure_shift",
    "merge",
    "predict_accuracy",
    "predict_sweep",
    "predictions",
    "prepare",
    "read_tables",
    "status",
    "sweep",
    "train",
    "unblind",
    "write_page",
]


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _VERBS:
        return getattr(importlib.import_module(_VERBS[name]), name)
    raise AttributeError(f"module 'shiftbed' has no attribute '{name}'")
