"""A job whose process group is killed from outside, at times drawn beforehand, ends with the same bytes."""

import contextlib
import hashlib
import inspect
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.training.test_crashes import PastedNoise

pytestmark = pytest.mark.slow
KILLS = 20
STEPS = 400
RESULTS = ("*.safetensors", "*.jsonl", "done.json", "test-*.json")
PASTED = """
import numpy as np
import torch
import torch.nn.functional as F
from shiftbed.algorithms import register
from shiftbed.algorithms.domainbed import ERM

@register()
"""


def command(out, algorithm):
    options = ["--steps", str(STEPS), "--out", str(out), "--keep", "all", "--device", "cpu"]
    if algorithm == "PastedNoise":
        code = out.parent / "pasted.py"
        code.write_text(PASTED + inspect.getsource(PastedNoise))
        options += ["--code", str(code)]
    return [sys.executable, "-m", "shiftbed", "train", "ColoredDigits", algorithm, "--test=-90%", *options]


def fingerprint(out):
    files = sorted(path for kind in RESULTS for path in out.rglob(kind))
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("algorithm", ["IRM", "SWAD", "MMLD", "Mixup", "PastedNoise"])
def test_killed_twenty_times_it_ends_the_same(algorithm, tmp_path):
    started = time.monotonic()
    subprocess.run(command(tmp_path / "whole", algorithm), check=True, stdout=subprocess.DEVNULL)
    whole = time.monotonic() - started
    (times,) = (tmp_path / "whole").glob("jobs/*/times.json")
    training = sum(attempt["seconds"] for attempt in json.loads(times.read_bytes()))
    # Some kills hit the imports, some the training, of which none lets much pass: the last shall find it unfinished.
    moments = np.random.default_rng(0).uniform(0.5 * (whole - training), whole - 0.75 * training, KILLS)
    killed = 0
    for moment in moments:
        process = subprocess.Popen(
            command(tmp_path / "killed", algorithm), stdout=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(moment)
        with contextlib.suppress(ProcessLookupError):  # it may just have come to its end
            os.killpg(process.pid, signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
    subprocess.run(command(tmp_path / "killed", algorithm), check=True, stdout=subprocess.DEVNULL)
    print(f"{algorithm}: {killed} of {KILLS} kills found it running; a whole run took {whole:.0f} s")
    assert killed >= KILLS // 2
    assert fingerprint(tmp_path / "killed") == fingerprint(tmp_path / "whole")
