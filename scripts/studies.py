"""What a part of docs/results.md is made of: a benchmark, a sweep, ranks, or what a script measured."""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any, get_args

from shiftbed import benchmarks
from shiftbed.benchmarks import Benchmark, request_of
from shiftbed.report.figures import figure
from shiftbed.report.figures_drawn import beside
from shiftbed.shift.kept import shift_points
from shiftbed.sweeps.plan import plan
from shiftbed.sweeps.records import Records
from shiftbed.sweeps.times import hours, job_times
from shiftbed.tables import Grid, boards_against, read_tables, render
from shiftbed.tables.grids import MISSING, grid_markdown
from shiftbed.training.device import Precision
from shiftbed.training.store import LocalStore

ROOT = Path(__file__).parents[1]
FOLDER = Path("docs/results")
PAGE = ROOT / "docs" / "results.md"
VERB_WORDS = {"selection": "selections", "part": "parts"}
Kind = tuple[str, str, int]  # setting, algorithm, trial


@dataclass(frozen=True)
class Study(ABC):
    """One rung of the ladder, or a step of it.

    Attributes:
        rung: The rung.
        title: What it is.
        folder: The folder in docs/results.
    """

    rung: int
    title: str
    folder: str

    @property
    def path(self) -> Path:
        """Where its numbers are."""
        return ROOT / FOLDER / self.folder

    @abstractmethod
    def sections(self) -> Iterator[str]:
        """The paragraphs that are about its numbers."""

    @property
    def heading(self) -> str:
        """The heading of its part of the page."""
        return f"{self.rung}. {self.title}"

    @property
    def anchor(self) -> str:
        """The name of its part of the page."""
        return re.sub(r"[^\w\- ]", "", self.heading.lower()).replace(" ", "-")

    @property
    def link(self) -> str:
        """A link to its part of the page."""
        return f"[{self.title}](#{self.anchor})"

    def page(self, notes: bool = True) -> str:
        """Its part of the page; without notes where another study of the same folder has them."""
        file = self.path / "notes.md"
        told = [file.read_text(encoding="utf-8").strip()] if notes and file.exists() else []
        return "\n\n".join([f"## {self.heading}", *self.sections(), *told])


@dataclass(frozen=True)
class BenchmarkStudy(Study):
    """A benchmark, or a stated part of it.

    Attributes:
        benchmark: The benchmark's name, or its file.
        options: What of it, as the command line says it.
        data: The datasets that must be prepared to run it.
    """

    benchmark: str
    options: tuple[tuple[str, str], ...] = ()
    data: tuple[str, ...] = ()

    @cached_property
    def whole(self) -> Benchmark:
        """The benchmark as its file has it."""
        return benchmarks.load(str(ROOT / self.benchmark) if self.benchmark.endswith(".yaml") else self.benchmark)

    @cached_property
    def narrowing(self) -> dict[str, Any]:
        """The options as the verb takes them."""
        given: dict[str, Any] = {}
        for name, value in self.options:
            if value.isdigit():
                given[name] = int(value)
            else:
                given.setdefault(VERB_WORDS.get(name, name), []).extend(value.split(","))
        return given

    @cached_property
    def asked(self) -> Benchmark:
        """The part that is asked for."""
        return benchmarks.narrowed(self.whole, **self.narrowing)

    @property
    def command(self) -> str:
        """The command that runs it."""
        options = [f"--{name} {quote(value)}" for name, value in self.options]
        name = f"--file {self.benchmark}" if self.benchmark.endswith(".yaml") else self.benchmark
        return " ".join(["shiftbed benchmark", name, *options, f"--out {FOLDER / self.folder}"])

    def sections(self) -> Iterator[str]:
        """Command, counts, costs, tables, and what agreed."""
        prepared = [f"shiftbed prepare {name}" for name in self.data]
        yield "\n".join(["```text", *prepared, self.command, "```"])
        if not self.path.exists():
            yield f"Not run yet: {self.unit(sum(map(benchmarks.job_count, self.asked.parts)))}."
            return
        yield from self.counts()
        if self.picture.exists():
            words = "Ours beside the paper's" if self.whole.paper else "Averages over test domains"
            yield f"![{words}]({self.picture.relative_to(PAGE.parent)})"
        if self.is_figure:
            yield " ".join(self.whole.notes)
        for grid in [] if self.is_figure else self.tables:
            yield grid_markdown(replace(grid, commands=()))
            yield from self.agreed(grid).words()
        for dataset, (diversity, correlation) in sorted(shift_points(self.path).items()):
            yield f"Shift of {dataset} (`shiftbed shift {dataset}`): {diversity}; {correlation}."
            picture = self.path / "shift" / f"{dataset}-plane.png"
            if picture.exists():
                yield f"![Where {dataset} lies among published datasets]({picture.relative_to(PAGE.parent)})"

    @property
    def picture(self) -> Path:
        """The file of its picture, if it has one."""
        return self.path / f"{self.anchor}.png"

    def draw(self) -> None:
        """Draws its numbers beside the paper's, or the paper's figure, or, where there is no paper, a leaderboard."""
        if self.is_figure:
            figure("shift-grid", self.path, self.picture)
        elif self.path.exists() and any(_compared(row) for grid in self.tables for row in grid.data):
            beside(self.tables, self.picture)
        elif self.path.exists() and not self.whole.paper:
            figure("leaderboard", self.path, self.picture)

    @property
    def is_figure(self) -> bool:
        """Whether the paper draws its numbers and prints none: the page does so too."""
        return any(self.path.glob("figure-4-*.json"))

    def agreed(self, grid: Grid) -> "Agreement":
        """How a table compares with the paper's."""
        rows = [row for row in grid.data if not row.get("trend")]
        return Agreement(tuple(rows), 1 if self.whole.kind == "sweep" else 2)

    def glance(self) -> tuple[str, ...]:
        """Its row of the summary: what it is, how far it is, trials, cells that agree, hours."""
        total = sum(map(benchmarks.job_count, self.asked.parts))
        if not self.path.exists():
            return str(self.rung), self.link, f"0 of {self.unit(total)}", MISSING, MISSING, MISSING
        counts = sorted({row["n"] for grid in self.tables for row in grid.data if row["n"]})
        agreed = [one for grid in self.tables if (one := self.agreed(grid).short())]
        n = " to ".join(map(str, dict.fromkeys([*counts[:1], *counts[-1:]])))
        if self.whole.kind != "sweep":
            return str(self.rung), self.link, f"all {self.unit(total)}", n, "; ".join(agreed) or MISSING, MISSING
        done, planned = self.done().total(), self.planned().total()
        far = f"all {planned:,} jobs" if done == planned else f"{done:,} of {planned:,} jobs"
        spent = ", ".join(f"{busy:.1f} {name}" for name, (_, busy) in self.spent().items())
        return str(self.rung), self.link, far, n or MISSING, "; ".join(agreed) or MISSING, spent or MISSING

    def unit(self, count: int) -> str:
        """So many jobs or measurements."""
        return f"{count:,} {'jobs' if self.whole.kind == 'sweep' else 'measurements'}"

    def counts(self) -> Iterator[str]:
        """What is done, trial by trial, and what it took."""
        if self.whole.kind != "sweep":
            return
        planned, done = self.planned(), self.done()
        trials = sorted({trial for *_, trial in planned})
        of_trial = {t: [sum(n for kind, n in some.items() if kind[2] == t) for some in (done, planned)] for t in trials}
        words = [f"trial {t}: {some:,} of {every:,}" for t, (some, every) in of_trial.items()]
        diverged = sum(status == "diverged" for _, status, *_ in self._jobs)
        yield f"Jobs done: {'; '.join(words)}." + (f" {diverged} of them diverged." if diverged else "")
        spent = self.spent()
        each = [f"{summed:.2f} hours of jobs in {busy:.2f} hours of {name}" for name, (summed, busy) in spent.items()]
        if "cpu" in spent:  # jobs have one core each
            each.append(f"on a laptop of two cores the jobs of the cpu take {spent['cpu'][0] / 2:.1f} hours")
        if each:
            yield f"Costs: {'; '.join(each)}."

    def spent(self) -> dict[str, tuple[float, float]]:
        """By device, the hours of its jobs and those in which the device was busy with them."""
        times = job_times(LocalStore(self.path))
        return hours(attempt for job_id, *_ in self._jobs for attempt in times.get(job_id, []))

    @cached_property
    def _jobs(self) -> list[tuple[Any, ...]]:
        """Its finished jobs: id, status, setting, algorithm, trial, draw, test domains."""
        with Records(LocalStore(self.path)) as records:
            query = "SELECT id, status, setting, algorithm, trial, draw, test_domains FROM jobs ORDER BY id"
            return [job for job in records.sql(query).fetchall() if (*job[2:6], tuple(job[6])) in self._plan]

    @cached_property
    def _plan(self) -> dict[tuple[str, str, int, int, tuple[str, ...]], tuple[Kind, Precision]]:
        """What is asked for, in every arithmetic; ids would need the initial weights."""
        asked = ((one, request_of(part, one)) for part in self.asked.parts for one in get_args(Precision))
        return {
            (kind := (job.setting, job.algorithm, job.trial)) + (job.draw, tuple(job.task.test_domains)): (kind, one)
            for one, request in asked
            for job in plan(request)
        }

    def done(self) -> Counter[Kind]:
        """How many jobs are done of each setting, algorithm and trial."""
        return Counter((setting, algorithm, trial) for _, _, setting, algorithm, trial, *_ in self._jobs)

    def planned(self) -> Counter[Kind]:
        """How many are asked for, in the arithmetic of those that are done."""
        used = {self._plan[*job[2:6], tuple(job[6])][1] for job in self._jobs}
        return Counter(kind for kind, precision in self._plan.values() if precision in used)

    def is_whole(self) -> bool:
        """Whether no job is missing of a trial that was begun."""
        planned, done = self.planned(), self.done()
        return self.path.exists() and not any(0 < done[kind] < count for kind, count in planned.items())

    @cached_property
    def tables(self) -> list[Grid]:
        """Our tables beside the paper's."""
        grids = benchmarks.benchmark(self.whole, self.path, train=False, **self.narrowing).grids
        return [grid for grid in grids if "n" in next(iter(grid.data), {})]


@dataclass(frozen=True)
class Agreement:
    """Which cells agree with the paper's, as both are printed.

    Attributes:
        rows: The cells of a table.
        decimals: How many are printed.
    """

    rows: tuple[dict[str, Any], ...]
    decimals: int

    @property
    def same(self) -> list[dict[str, Any]]:
        """The cells of the same experiment as the paper's, but for the number of trials."""
        compared = [row for row in self.rows if _compared(row) and row["published_spread"] is not None]
        return [row for row in compared if set(row["differs"]) <= {"trials"}]

    @property
    def far(self) -> list[dict[str, Any]]:
        """Those that lie outside both errors, the farthest first."""
        far = [row for row in self.same if self.outside(row) > 0]
        return sorted(far, key=lambda row: -self.outside(row))

    def outside(self, row: dict[str, Any]) -> float:
        """How far a number of ours lies outside the paper's error and its own together."""
        ours, error = (round(row[name] or 0.0, self.decimals) for name in ("ours", "standard_error"))
        return round(abs(ours - row["published"]) - row["published_spread"] - error, self.decimals)

    def short(self) -> str:
        """How many of how many agree, and by which selection, if by one."""
        rule = self.same[0].get("selection", "") if self.same else ""
        return f"{rule} {len(self.same) - len(self.far)} of {len(self.same)}".strip() if self.same else ""

    def words(self) -> Iterator[str]:
        """How many trials the cells have, and which of them do not agree."""
        filled = Counter(row["n"] for row in self.rows if row["n"])
        if filled:
            yield "n: " + ", ".join(f"{n} in {count} cells" for n, count in sorted(filled.items())) + "."
        if not self.same:
            return
        each = [
            f"{row['row']}, {row['column']}: {row['ours']:.{self.decimals}f} and "
            f"{row['published']:.{self.decimals}f} ± {row['published_spread']:.{self.decimals}f}"
            for row in self.far
        ]
        lone = " (ours have no error yet, n = 1)" if all(row["n"] == 1 for row in self.same) else ""
        yield f"{len(self.same) - len(self.far)} of {len(self.same)} cells agree with the paper's{lone}." + (
            f" Others: {'; '.join(each)}." if each else ""
        )


def _compared(row: dict[str, Any]) -> bool:
    return row.get("published") is not None and row["ours"] is not None


@dataclass(frozen=True)
class SweepStudy(Study):
    """A sweep that no benchmark has.

    Attributes:
        options: What is swept, as the command line says it.
        rule: The selection that its table is of.
    """

    options: str
    rule: str

    def sections(self) -> Iterator[str]:
        """Command and table."""
        folder = FOLDER / self.folder
        show = f"shiftbed tables {folder} --selection {self.rule}"
        yield f"```text\nshiftbed sweep {self.options} --out {folder}\n{show}\n```"
        yield render(read_tables(self.path, [self.rule]), "markdown").strip() if self.path.exists() else "Not run yet."


@dataclass(frozen=True)
class RankStudy(Study):
    """The ranks of one study beside those of another, once both are whole.

    Attributes:
        ranked: The study.
        other: The other one.
    """

    ranked: BenchmarkStudy
    other: BenchmarkStudy

    def sections(self) -> Iterator[str]:
        """Command and table."""
        rule = "training-domain-validation"
        folders = f"{FOLDER / self.ranked.folder} --selection {rule} --against {FOLDER / self.other.folder}"
        yield f"```text\nshiftbed tables {folders}\n```"
        if not all(study.is_whole() for study in (self.ranked, self.other)):
            yield "Not shown yet: it needs both studies above, whole."
            return
        for grid in boards_against(*(read_tables(study.path, [rule]) for study in (self.ranked, self.other))):
            yield grid_markdown(grid)


@dataclass(frozen=True)
class ScriptStudy(Study):
    """A study that a script of this folder runs.

    Attributes:
        command: What runs it.
        file: The file of its numbers, or their folder, from the repository's root.
        show: Its numbers as Markdown.
    """

    command: str
    file: str
    show: Callable[[Path], str]

    def sections(self) -> Iterator[str]:
        """Command and tables."""
        yield f"```text\n{self.command}\n```"
        file = ROOT / self.file
        yield self.show(file) if file.exists() else "Not run yet."
