"""What is shown while a sweep runs."""

import io

import pytest
import torch
from rich.console import Console

from shiftbed.cli import sweeps
from shiftbed.report import live, show
from shiftbed.sweeps.pool import Progress
from shiftbed.sweeps.records import Status
from tests.conftest import tiny_job

JOBS = [tiny_job(name, draw=draw) for name in ("ERM", "IRM") for draw in range(2)]


class Clock:
    """A time that passes only when it is told to."""

    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(live, "time", made)
    return made


def console(terminal, height=30):
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, height=height, color_system=None)


def said(screen):
    return screen.file.getvalue().splitlines()


def test_without_a_terminal_a_log_tells_failures_ends_and_now_and_then_the_time_left(clock):
    screen, progress = console(False), Progress(JOBS)
    with live.SweepView(screen) as view:
        view(progress)
        clock.now = 8.0
        progress.ended[JOBS[0].id] = "done"
        progress.failed[JOBS[1].id] = "no memory"
        view(progress)
        view(progress)
        clock.now = 20.0
        progress.running = {JOBS[2].id: 0.5}
        view(progress)
        progress.ended[JOBS[2].id] = progress.ended[JOBS[3].id] = "diverged"
        view(progress)
    assert said(screen) == [
        f"failed: ERM on ColoredDigits ({JOBS[1].id}): no memory",
        "ERM on ColoredDigits has ended: 1 done, 1 failed",
        # Two and a half jobs in 20 seconds; one and a half are left.
        "1/4 jobs, 1 running, 1 failed, 7.5 jobs/min, about 12 s left",
        "IRM on ColoredDigits has ended: 2 diverged",
    ]


def test_jobs_that_were_done_before_count_neither_for_the_pace_nor_as_news(clock):
    screen, progress = console(False), Progress(JOBS, ended={job.id: "done" for job in JOBS[:2]}, found=2)
    with live.SweepView(screen) as view:
        view(progress)
        clock.now = 3600.0
        progress.running = {JOBS[2].id: 0.5}
        view(progress)
        progress.ended[JOBS[2].id] = "done"
        progress.running = {}
        clock.now = 7200.0
        view(progress)
    assert said(screen) == [
        "2/4 jobs, 1 running, about 3 h 00 min left",  # and no pace, of which half a job says little
        "3/4 jobs, 0 running, 0.5 jobs/h, about 2 h 00 min left",
    ]


def test_on_a_terminal_jobs_stand_by_dataset_and_algorithm(clock):
    screen = console(True)
    progress = Progress(JOBS, {JOBS[0].id: "done"}, {JOBS[1].id: "no memory"}, {JOBS[2].id: 0.5})
    with live.SweepView(screen) as view:
        view(progress)
        clock.now = 60.0
    shown = [line.replace("│", " ").split() for line in said(screen)]
    assert ["ColoredDigits", "ERM", "1", "0", "0", "1", "0"] in shown
    assert ["ColoredDigits", "IRM", "0", "0", "1", "0", "1"] in shown
    assert ["all", "1", "0", "1", "1", "1"] in shown
    assert any("1/4 jobs, 2.5 jobs/min" in line for line in said(screen))


@pytest.mark.parametrize(("now", "pace"), [("running", "About 30 s left, at 4.0 jobs/min."), ("left", "Nothing runs;")])
def test_status_tells_the_pace_of_what_runs(now, pace, monkeypatch):
    screen = console(False)
    monkeypatch.setattr(sweeps, "console", screen)
    states = {"a": "done", "b": now, "c": "left"}
    sweeps._show_status(Status(states, {job: {"dataset": "A", "algorithm": "ERM"} for job in states}, {}, 30.0))
    assert said(screen)[-1].startswith(pace)


def test_before_the_first_job_has_ended_status_calls_what_runs_running(monkeypatch):
    screen = console(False)
    monkeypatch.setattr(sweeps, "console", screen)
    states = {"a": "running", "b": "left"}
    sweeps._show_status(Status(states, {job: {"dataset": "A", "algorithm": "ERM"} for job in states}, {}, None))
    assert "Nothing runs" not in "".join(said(screen))


def rows(table):
    return list(zip(*(column.cells for column in table.columns), strict=True))


def test_where_kinds_are_many_those_at_work_are_shown_and_the_others_added_up():
    kinds = [("A", f"algorithm {number}") for number in range(9)]
    states = ["done"] * 4 + ["running", "left", "left", "failed", "left"]
    table = show.state_table(zip(kinds, states, strict=True), most=3)
    assert rows(table) == [
        ("A", "algorithm 4", "0", "0", "1", "0", "0"),
        ("A", "algorithm 7", "0", "0", "0", "1", "0"),
        ("7 others", "", "4", "0", "0", "0", "3"),
        ("all", "", "4", "0", "1", "1", "3"),
    ]
    assert len(rows(show.state_table(zip(kinds, states, strict=True)))) == 10


def test_the_live_view_is_no_higher_than_the_terminal(clock):
    jobs = [tiny_job(name) for name in ("ERM", "IRM", "SD", "VREx", "CORAL", "MMD", "Mixup", "GroupDRO")]
    screen = console(True, height=12)
    with live.SweepView(screen) as view:
        view(Progress(jobs))
    lines = screen.render_lines(view._live.renderable)
    assert len(lines) <= 12 and any("others" in segment.text for line in lines for segment in line)


def test_one_job_shows_its_loss_its_pace_and_the_time_left(clock, monkeypatch):
    screen = console(True)
    with live.training_bar(screen) as bar:
        monkeypatch.setattr(bar._bar, "get_time", clock.monotonic)
        bar.begin(JOBS[0])
        for step in (1, 2, 3):
            clock.now = 0.5 * step
            bar.step(step, {"loss": 0.25 * step})
        bar._bar.refresh()
        assert "ERM on ColoredDigits" in screen.file.getvalue()
        assert "loss 0.750, 2.0 steps/s" in screen.file.getvalue()


@pytest.mark.parametrize("loss", [torch.ones((), requires_grad=True), torch.tensor([0.5, 1.5])])
@pytest.mark.filterwarnings("error")
def test_a_loss_may_have_a_graph_or_a_value_for_each_example(clock, loss):
    screen = console(True)
    with live.training_bar(screen) as bar:
        bar.begin(JOBS[0])
        for clock.now in (1.0, 2.0, 3.0):
            bar.step(int(clock.now), {"loss": loss})
        bar._bar.refresh()
        assert "loss 1.000" in screen.file.getvalue()


def test_one_job_is_logged_where_there_is_no_terminal_and_not_in_what_it_prints(clock, capsys):
    screen = console(False)
    with live.training_bar(screen) as bar:
        bar.begin(tiny_job("ERM", steps=20))
        for step in range(4, 9):  # continued at step 4, of 20
            clock.now += 5
            bar.step(step, {"loss": 0.5})
    assert not screen.file.getvalue()
    assert capsys.readouterr().err.splitlines() == [
        "ERM on ColoredDigits: 5/20 steps, loss 0.500, 0.2 steps/s, about 1 min 15 s left",
        "ERM on ColoredDigits: 7/20 steps, loss 0.500, 0.2 steps/s, about 1 min 05 s left",
    ]


def test_other_work_is_logged_there_too(clock, capsys):
    screen = console(False)
    with live.work_bar(screen) as bar:
        bar("packing", 0, 40)
        clock.now = 9
        bar("packing", 9, 40)
        clock.now = 12
        bar("packing", 10, 40)
        clock.now = 30
        bar("reading", 3, 0)
    assert capsys.readouterr().err.splitlines() == ["packing: 10/40, about 36 s left", "reading"]
    with live.work_bar(console(True)) as bar:
        clock.now = 60
        bar("packing", 10, 40)
    assert not capsys.readouterr().err
