"""Sweeps on a GPU: how many jobs share it is measured, and a job that breaks its process's device harms no other."""

import pytest
import torch

from shiftbed.sweeps.plan import Request
from shiftbed.sweeps.verbs import sweep

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")]
BREAKER = '''
import torch
from shiftbed.algorithms import ERM, register

@register()
class Breaker(ERM):
    """Reads past the end of a tensor, after which its process can use the device no more."""

    def update(self, minibatches, unlabeled=None):
        wrong = torch.full((1,), 10**6, device=minibatches[0][1].device)
        return {"loss": torch.zeros(3, device=wrong.device)[wrong].sum().item()}
'''


def run(folder, algorithms, steps, **options):
    """The sweep's progress, and the most jobs that ran at once."""
    most = 0

    def watch(progress):
        nonlocal most
        most = max(most, len(progress.running))

    fields = {"steps": steps, "evaluate_every": max(1, steps // 6)}
    request = Request("ColoredDigits", algorithms, trials=6, test_domains=["-90%"], fields=fields)
    return sweep(request, folder, on_change=watch, **options), most


def test_jobs_share_a_gpu_once_the_first_was_measured(tmp_path):
    progress, most = run(tmp_path, ["Mixup"], 600)
    assert list(progress.ended.values()) == ["done"] * 6 and progress.deaths == 0
    assert 1 < most <= 4 * torch.cuda.device_count()


def test_a_job_that_breaks_the_device_harms_no_other(tmp_path):
    (tmp_path / "breaker.py").write_text(BREAKER)
    code = [tmp_path / "breaker.py"]
    progress, most = run(tmp_path / "sweep", ["Breaker", "Mixup"], 12, jobs_per_device=1, code=code)
    assert most <= torch.cuda.device_count()
    assert list(progress.ended.values()) == ["done"] * 6
    assert len(progress.failed) == 6 and all("assert" in why and "\n" not in why for why in progress.failed.values())
