"""A job whose process group is killed from outside, at times drawn beforehand, ends with the same bytes."""

import hashlib
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

pytestmark = pytest.mark.slow
KILLS = 20
STEPS = 400


def command(out, algorithm):
    options = ["--steps", str(STEPS), "--out", str(out), "--keep", "all", "--device", "cpu"]
    return [sys.executable, "-m", "shiftbed", "train", "ColoredDigits", algorithm, "--test=-90%", *options]


def fingerprint(out):
    files = sorted(
        path for path in out.rglob("*") if path.suffix in (".safetensors", ".jsonl") or path.name == "done.json"
    )
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("algorithm", ["IRM", "SWAD"])
def test_killed_twenty_times_it_ends_the_same(algorithm, tmp_path):
    started = time.monotonic()
    subprocess.run(command(tmp_path / "whole", algorithm), check=True, stdout=subprocess.DEVNULL)
    whole = time.monotonic() - started
    # Some kills hit the imports, some the training: up to the time a whole run takes.
    moments = np.random.default_rng(0).uniform(0.3 * whole, whole, KILLS)
    killed = 0
    for moment in moments:
        process = subprocess.Popen(
            command(tmp_path / "killed", algorithm), stdout=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(moment)
        killed += process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(command(tmp_path / "killed", algorithm), check=True, stdout=subprocess.DEVNULL)
    assert killed >= KILLS // 2
    assert fingerprint(tmp_path / "killed") == fingerprint(tmp_path / "whole")
