"""The live view of a sweep: a bar with time left on a terminal, a line now and then elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.console import Console
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

from shiftbed.sweeps import pool
from shiftbed.training.job import Job

PLAIN_SECONDS = 10.0
SHOW_SECONDS = 0.2


class TimeLeftColumn(TimeRemainingColumn):
    """The time left, named, once it can be told."""

    def render(self, task: Task) -> Text:
        """The column's text for a task."""
        return Text() if task.time_remaining is None else super().render(task).append(" left")


class SweepView:
    """Shows a sweep's progress; call it with the progress whenever that changes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_line = time.monotonic()
        self._started = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[counts]}"),
            TimeElapsedColumn(),
            TimeLeftColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("training", total=None, counts="starting workers")

    def __enter__(self) -> "SweepView":
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def __call__(self, progress: pool.Progress) -> None:
        """Shows where the sweep stands now."""
        # Jobs found done took no time: counting them would promise too early an end.
        total = len(progress.jobs) - progress.found
        worth = progress.jobs_worth() - progress.found
        self._bar.update(self._task, total=total, completed=worth, counts=counts(progress))
        if not self._console.is_terminal and time.monotonic() - self._last_line > PLAIN_SECONDS:
            self._last_line = time.monotonic()
            elapsed = time.monotonic() - self._started
            left = f", about {duration(elapsed * (total - worth) / worth)} left" if worth > 0 else ""
            self._console.print(f"{counts(progress)}{left}")


class TrainingBar:
    """Shows one job's progress: loss, steps a second, time left."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None, state="starting")
        self._last = self._started = time.monotonic()
        self._first: int | None = None

    def begin(self, job: Job) -> None:
        """Names the job."""
        name = f"{job.algorithm} on {job.dataset}"
        self._bar.update(self._task, total=job.recipe.steps, description=name, state="loading data")

    def step(self, step: int, metrics: dict[str, Any]) -> None:
        """Shows a step; the loss is fetched a few times a second only, as fetching waits for the device."""
        if self._first is None:
            self._first, self._started = step, time.monotonic()
        now = time.monotonic()
        if now - self._last > SHOW_SECONDS:
            self._last = now
            speed = (step - self._first) / (now - self._started)
            state = f"loss {float(metrics.get('loss', float('nan'))):.3f}, {speed:.0f} steps/s"
            self._bar.update(self._task, completed=step, state=state)


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
        yield TrainingBar(bar)


@contextmanager
def work_bar(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar for work in several parts: called with the part, how much is done, and how much there is."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn(), TimeLeftColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        parts: dict[str, TaskID] = {}

        def show(part: str, done: int, total: int) -> None:
            if part not in parts:
                parts[part] = bar.add_task(part, total=None)
            bar.update(parts[part], completed=done, total=total or None)

        yield show


def counts(progress: pool.Progress) -> str:
    """Done, running and failed jobs in a few words."""
    words = [f"{len(progress.ended)}/{len(progress.jobs)} jobs", f"{len(progress.running)} running"]
    if progress.elsewhere:
        words.append(f"{len(progress.elsewhere)} elsewhere")
    if progress.failed:
        words.append(f"{len(progress.failed)} failed")
    return ", ".join(words)


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
