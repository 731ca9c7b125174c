"""The small demo, with the network cut, interrupted and continued."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

CUT = """
import socket

def refuse(self, address):
    if self.family != socket.AF_UNIX:
        raise OSError(f"the network is cut: {address}")
    return connect(self, address)

connect, socket.socket.connect = socket.socket.connect, refuse
"""


@pytest.mark.slow
def test_the_fast_demo_continues_after_an_interruption_and_ends_with_the_page(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(CUT)
    here = {**os.environ, "PYTHONPATH": str(tmp_path), "SHIFTBED_DATA": str(tmp_path / "data")}
    command = [sys.executable, "-m", "shiftbed", "demo", "--fast", "--out", "demo"]
    first = subprocess.Popen(command, cwd=tmp_path, env=here, stdout=subprocess.PIPE, text=True)
    jobs = tmp_path / "demo" / "jobs"
    while len(list(jobs.glob("*/done.json"))) < 3:
        assert first.poll() is None, "it ended before it was interrupted"
        time.sleep(0.2)
    first.send_signal(signal.SIGINT)
    words = first.communicate(timeout=60)[0]
    assert first.returncode == 130 and "nothing is lost" in words
    done = {path: path.read_bytes() for path in jobs.glob("*/done.json")}
    again = subprocess.run(command, cwd=tmp_path, env=here, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert all(path.read_bytes() == content for path, content in done.items()), "nothing was trained twice"
    log = (tmp_path / "demo" / "demo.log").read_text().splitlines()
    pattern = r"(ColoredDigits|EmojiStyles) .* 90 steps  validation +[\d.]+ %  test +[\d.]+ %  [0-9a-f]{8}"
    assert len(log) == len(set(log)) >= 40 and all(re.fullmatch(pattern, line) for line in log)
    page = tmp_path / "demo" / "report.html"
    assert str(page) in again.stdout and 10_000 < page.stat().st_size < 8e6
    rows = json.loads((tmp_path / "demo" / "accuracy" / "predictions.json").read_text())
    assert len(rows) == 10 and all(0 <= row["low"] <= row["accuracy"] <= row["high"] <= 1 for row in rows)
    for rule in ("training-domain-validation", "domain-cross-validation", "oracle"):
        assert f"\n{rule}: accuracy" in again.stdout
    assert "Next: shiftbed figure" in again.stdout
