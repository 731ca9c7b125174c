"""What is shown while something runs: of a sweep a table and the time left, or a log where there is no terminal."""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from shiftbed.report import show
from shiftbed.sweeps import pool
from shiftbed.training.job import Job

PLAIN_SECONDS = 10.0
SHOW_SECONDS = 0.2
FRAME = 7  # lines of the live view that are no rows of its table


class TimeLeftColumn(TimeRemainingColumn):
    """The time left, named, once it can be told."""

    def render(self, task: Task) -> Text:
        """The column's text for a task."""
        return Text() if task.time_remaining is None else super().render(task).append(" left")


class SweepView:
    """Shows a sweep's progress; call it with the progress whenever that changes.

    On a terminal: jobs by dataset and algorithm, how many end in a minute, and the time left. Elsewhere, as a log: the
    same in a line now and then, a line when all jobs of an algorithm on a dataset have ended, and every failure.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: pool.Progress | None = None
        self._shown = self._started = time.monotonic()
        self._settled = 0  # jobs that had ended in any way when the log was last written
        self._failed: set[str] = set()
        self._ended: set[show.Kind] = set()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[counts]}"),
            TimeElapsedColumn(),
            TimeLeftColumn(),
            console=console,
        )
        self._task = self._bar.add_task("training", total=None, counts="starting workers")
        self._live = Live(self._bar, console=console, refresh_per_second=4) if console.is_terminal else None

    def __enter__(self) -> "SweepView":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            if self._progress is not None:
                self._draw(self._progress)
            self._live.stop()

    def __call__(self, progress: pool.Progress) -> None:
        """Shows where the sweep stands now."""
        now = time.monotonic()
        if self._progress is None or progress.jobs is not self._progress.jobs:  # a sweep may have two stages
            self._started, self._failed, self._ended = now, set(progress.failed), set(_ended(progress))
        self._progress = progress
        if self._live is None:
            self._log(progress, now)
        elif now - self._shown > SHOW_SECONDS:
            self._shown = now
            self._draw(progress)

    def _draw(self, progress: pool.Progress) -> None:
        assert self._live is not None
        # Jobs found done took no time: counting them would promise too early an end.
        total, worth = len(progress.jobs) - progress.found, progress.jobs_worth() - progress.found
        words = ", ".join([f"{len(progress.ended)}/{len(progress.jobs)} jobs", *self._pace(progress, worth)])
        self._bar.update(self._task, total=total, completed=worth, counts=words)
        states = (((job.dataset, job.algorithm), progress.state(job.id)) for job in progress.jobs)
        self._live.update(Group(show.state_table(states, max(1, self._console.height - FRAME)), self._bar))

    def _log(self, progress: pool.Progress, now: float) -> None:
        settled = len(progress.ended) + len(progress.failed)
        if settled != self._settled:
            self._settled = settled
            for job in (job for job in progress.jobs if job.id in progress.failed.keys() - self._failed):
                self._print(f"failed: {job.algorithm} on {job.dataset} ({job.id}): {progress.failed[job.id]}")
            for kind, states in _ended(progress).items():
                if kind not in self._ended:
                    how = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
                    self._print(f"{kind[1]} on {kind[0]} has ended: {how}")
            self._failed, self._ended = set(progress.failed), set(_ended(progress))
        if now - self._shown > PLAIN_SECONDS:
            self._shown = now
            total, worth = len(progress.jobs) - progress.found, progress.jobs_worth() - progress.found
            left = [f"about {duration((now - self._started) * (total - worth) / worth)} left"] if worth > 0 else []
            self._print(", ".join([counts(progress), *self._pace(progress, worth), *left]))

    def _pace(self, progress: pool.Progress, worth: float) -> list[str]:
        """Jobs in a time, once one has ended: a share of a first one tells more of how long workers take to start."""
        elapsed = time.monotonic() - self._started
        some = len(progress.ended) + len(progress.failed) > progress.found
        return [pace(worth / elapsed)] if some and elapsed > 1 else []

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _ended(progress: pool.Progress) -> dict[show.Kind, Counter[str]]:
    """The kinds of which no job is running or left, with the states of their jobs."""
    states: dict[show.Kind, Counter[str]] = defaultdict(Counter)
    for job in progress.jobs:
        states[job.dataset, job.algorithm][progress.state(job.id)] += 1
    return {kind: found for kind, found in states.items() if not found["running"] and not found["left"]}


class Log:
    """A line now and then in place of a bar where there is no terminal; what a program reads is left alone."""

    def __init__(self, console: Console) -> None:
        self._console = None if console.is_terminal else Console(stderr=True)
        self._shown = time.monotonic()

    def __call__(self, part: str, done: int, total: int, since: float, words: str = "") -> None:
        """Says how far a part is of which `done` was done in the time since; nothing if a line was just written."""
        now = time.monotonic()
        if self._console is None or now - self._shown < PLAIN_SECONDS:
            return
        self._shown = now
        left = f", about {duration((now - since) * (total - done) / done)} left" if 0 < done <= total else ""
        line = f"{part}: {done:,}/{total:,}{words}{left}" if total else part
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class TrainingBar:
    """Shows one job's progress: loss, steps a second, time left."""

    def __init__(self, bar: Progress, log: Log) -> None:
        self._bar = bar
        self._log = log
        self._task = bar.add_task("", total=None, state="starting")
        self._last = self._started = time.monotonic()
        self._first: int | None = None
        self._name, self._steps = "", 0

    def begin(self, job: Job) -> None:
        """Names the job."""
        self._name, self._steps = f"{job.algorithm} on {job.dataset}", job.recipe.steps
        self._bar.update(self._task, total=self._steps, description=self._name, state="loading data")

    def step(self, step: int, metrics: dict[str, Any]) -> None:
        """Shows a step; the loss is fetched a few times a second only, as fetching waits for the device."""
        now = time.monotonic()
        if self._first is None:
            self._first, self._started = step, now
        elif now - self._last > SHOW_SECONDS:
            self._last = now
            speed = (step - self._first) / (now - self._started)
            loss = float(torch.as_tensor(metrics.get("loss", math.nan)).detach().float().mean())
            state = f"loss {loss:.3f}, {speed:.{0 if speed > 10 else 1}f} steps/s"
            self._bar.update(self._task, completed=step, state=state)
            since = self._started - self._first / speed  # as if the steps of an earlier attempt had been as fast
            self._log(self._name, step, self._steps, since, f" steps, {state}")


@contextmanager
def training_bar(console: Console) -> Iterator[TrainingBar]:
    """A progress bar for one job."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[state]}"),
        TimeLeftColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        yield TrainingBar(bar, Log(console))


@contextmanager
def work_bar(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar for work in several parts: called with the part, how much is done, and how much there is."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn(), TimeLeftColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        parts: dict[str, TaskID] = {}
        since: dict[str, float] = {}
        log = Log(console)

        def show(part: str, done: int, total: int) -> None:
            if part not in parts:
                parts[part], since[part] = bar.add_task(part, total=None), time.monotonic()
            bar.update(parts[part], completed=done, total=total or None)
            log(part, done, total, since[part])

        yield show


def counts(progress: pool.Progress) -> str:
    """Done, running and failed jobs in a few words."""
    words = [f"{len(progress.ended)}/{len(progress.jobs)} jobs", f"{len(progress.running)} running"]
    if progress.elsewhere:
        words.append(f"{len(progress.elsewhere)} elsewhere")
    if progress.failed:
        words.append(f"{len(progress.failed)} failed")
    return ", ".join(words)


def pace(jobs_per_second: float) -> str:
    """Jobs in a minute, or in an hour where they are few."""
    in_a_minute = 60 * jobs_per_second
    return f"{in_a_minute:.1f} jobs/min" if in_a_minute >= 1 else f"{60 * in_a_minute:.1f} jobs/h"


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
