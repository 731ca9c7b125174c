"""A job that is told to stop: it saves and leaves, and leaves also where it cannot save in time."""

import copy
import json
import signal
import time
from collections import deque

import pytest

from shiftbed.algorithms import ERM, register
from shiftbed.cli import shared
from tests.test_cli import shiftbed  # noqa: F401

TRAIN = ("train", "ColoredDigits", "Signalled", "--test=-90%", "--steps=6", "--set=batch_size=4", "--device=cpu")


def test_a_signal_saves_and_the_same_command_goes_on_from_there(shiftbed):  # noqa: F811
    made = []

    class Signalled(ERM):
        """Is told to stop in its third update."""

        def update(self, minibatches, unlabeled=None):
            made.append(self.step + 1)
            if self.step == 2:
                signal.raise_signal(signal.SIGTERM)
            return super().update(minibatches, unlabeled)

    register()(Signalled)
    stopped = shiftbed(*TRAIN)
    assert stopped.code == 130 and "nothing is lost" in stopped.out
    assert json.loads(shiftbed(*TRAIN, "--json").out)["status"] == "done"
    assert made == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("kept", [lambda algorithm: deque(), lambda algorithm: copy.deepcopy(algorithm.network)])
def test_a_class_whose_jobs_start_over_is_not_told_that_nothing_is_lost(shiftbed, kept):  # noqa: F811
    made = []

    class Signalled(ERM):
        """Keeps what a checkpoint cannot hold, or a new object cannot take, and is told to stop."""

        def update(self, minibatches, unlabeled=None):
            made.append(self.step + 1)
            self.kept = kept(self)
            if len(made) == 3:
                signal.raise_signal(signal.SIGTERM)
            return super().update(minibatches, unlabeled)

    register()(Signalled)
    stopped = shiftbed(*TRAIN)
    said = " ".join(stopped.out.split())
    assert stopped.code == 130 and "the same command again starts over, to the same end." in said
    assert "nothing is lost" not in said
    assert json.loads(shiftbed(*TRAIN, "--json").out)["status"] == "done"
    assert made == [1, 2, 3, 1, 2, 3, 4, 5, 6]


def test_what_does_not_save_itself_in_time_is_interrupted(monkeypatch):
    monkeypatch.setattr(shared, "STOP_SECONDS", 0.02)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)]
    with pytest.raises(KeyboardInterrupt), shared.stop_flag() as should_stop:
        signal.raise_signal(signal.SIGINT)
        assert should_stop()
        time.sleep(10)  # as an evaluation of many images
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)] == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_who_could_not_save_in_time_leaves_at_once(shiftbed, monkeypatch):  # noqa: F811
    """The end of an interpreter with torch in it takes longer than what is then left of five seconds."""

    class Slow(ERM):
        """Is told to stop, and goes on."""

        def update(self, minibatches, unlabeled=None):
            signal.raise_signal(signal.SIGTERM)
            time.sleep(10)
            return {}

    def leave(code):
        raise SystemExit(code + 1000)

    register()(Slow)
    monkeypatch.setattr(shared, "STOP_SECONDS", 0.02)
    monkeypatch.setattr(shared.os, "_exit", leave)
    stopped = shiftbed("train", "ColoredDigits", "Slow", "--test=-90%", "--set=batch_size=4", "--device=cpu")
    assert stopped.code == 1130 and "the last checkpoint stays" in " ".join(stopped.out.split())


def test_a_job_that_diverged_says_where_and_keeps_no_weights(shiftbed, tmp_path):  # noqa: F811
    train = ("train", "ColoredDigits", "ERM", "--test=-90%", "--steps=4", "--set=batch_size=4", "--set=lr=1e30")
    said = " ".join(shiftbed(*train, "--device=cpu", "--out=run").out.split())
    assert "not a number at step 2: the job ended as diverged, before its first evaluation." in said
    assert "at step 0" not in said and "weights were not kept" in said
    assert not [*(tmp_path / "run").rglob("*.safetensors")]
    found = json.loads(shiftbed(*train, "--device=cpu", "--out=run", "--json").out)
    assert (found["status"], found["step"], found["records"]) == ("diverged", 2, [])
