"""Ten clean sweeps, really trained, with other seeds each: the audit raises at most one alarm."""

import pytest

from shiftbed.audit.verbs import audit_sweep
from shiftbed.protocols import LeaveOut
from shiftbed.sweeps.plan import remember_plan
from shiftbed.training.job import make_job
from shiftbed.training.recipes import recipe
from shiftbed.training.run import run_job
from shiftbed.training.store import LocalStore


@pytest.mark.slow
def test_ten_clean_sweeps_raise_at_most_one_alarm(tmp_path):
    how = recipe("quick", "ColoredDigits", steps=20, evaluate_every=10)
    alarms = []
    for trial in range(10):
        store = LocalStore(tmp_path / str(trial))
        jobs = [
            make_job("ColoredDigits", algorithm, LeaveOut((test,)), how, draw, trial)
            for algorithm in ("ERM", "CORAL")
            for test in ("+90%", "-90%")
            for draw in range(3)
        ]
        remember_plan(jobs, store)
        for job in jobs:
            run_job(job, store)
        alarms += [(trial, finding.sentence) for finding in audit_sweep(tmp_path / str(trial)).alarms]
    assert len(alarms) <= 1, alarms
