"""What is audited: the records of a sweep, and the tables that selections make of them."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from shiftbed.selection import SELECTIONS, TaskRecords
from shiftbed.selection.records import NO_STEP
from shiftbed.sweeps.designs import DESIGNS, REDRAW, Design
from shiftbed.sweeps.domainbed_format import REVISION
from shiftbed.sweeps.plan import planned, planned_designs
from shiftbed.sweeps.records import Records, that_test
from shiftbed.tables import Table, tables_of
from shiftbed.tables.making import first_of
from shiftbed.tables.table import left_out
from shiftbed.training.store import LocalStore

METRICS = ("accuracy", "count", "loss", "half_accuracy", "confidence")
HONEST = ("training-domain-validation", "domain-cross-validation", "ood-validation")


@dataclass(frozen=True)
class Subject:
    """A sweep under audit.

    Attributes:
        folder: Its folder.
        tasks: Its finished jobs.
        plan: The jobs that were asked for.
    """

    folder: str
    tasks: Sequence[TaskRecords]
    plan: Sequence[dict[str, Any]] = ()
    _tables: dict[str, list[Table]] = field(default_factory=dict, compare=False)

    @classmethod
    def read(cls, folder: str | Path, blind: bool = False) -> "Subject":
        """Reads a sweep's folder.

        Args:
            folder: The folder.
            blind: Read what the jobs are and when they were evaluated, and none of their numbers; the files of test
                numbers are not opened.

        Raises:
            StoreError: No job that tests a domain is finished there.
        """
        store = LocalStore(Path(folder))
        with Records(store, test=not blind) as records:
            tasks = that_test(records.tasks(() if blind else METRICS), folder)
        return cls(str(folder), tasks, list(planned(store).values()))

    @cached_property
    def abouts(self) -> list[dict[str, Any]]:
        """The descriptions of all jobs."""
        return [about for task in self.tasks for about in task.abouts]

    @property
    def datasets(self) -> list[str]:
        """The datasets, by name."""
        return sorted({about["dataset"] for about in self.abouts})

    @cached_property
    def has_records(self) -> bool:
        """Whether some job was evaluated at least once."""
        return any((task.steps != NO_STEP).any() for task in self.tasks)

    @property
    def without_records(self) -> str:
        """What a check says where no job has records."""
        diverged = sum(status == "diverged" for task in self.tasks for status in task.statuses)
        return f"no job has records: {diverged:,} of {len(self.abouts):,} diverged before the first evaluation."

    @property
    def imported(self) -> bool:
        """Whether some jobs were trained by DomainBed."""
        return any(about["revision"] == REVISION for about in self.abouts)

    def first(self, draws: int, trials: int) -> "Subject":
        """The same sweep as if no more than the first draws and trials had been asked for."""
        tasks, plan = first_of(self.tasks, self.plan, draws, trials)
        return Subject(self.folder, tasks, plan)

    @cached_property
    def _designs(self) -> dict[str, str]:
        return planned_designs(self.plan)

    def design(self, about: dict[str, Any]) -> Design:
        """How the hyperparameters of a job were searched."""
        return DESIGNS[self._designs.get(about["setting"], REDRAW)]

    def tables(self, selection: str) -> list[Table]:
        """The tables of a selection, one for each setting."""
        if selection not in self._tables:
            self._tables[selection] = tables_of(self.tasks, [SELECTIONS[selection]], self.plan, folder=self.folder)
        return self._tables[selection]

    def results(self, selection: str) -> list[Table]:
        """The same without NICO++'s references, which learned from the test domains: nothing leaks into them."""
        return [table for table in self.tables(selection) if not table.is_reference]

    def left_out(self, *selections: str) -> list[str]:
        """What notes say of the jobs whose lean records do not have what selections read, where there are any."""
        found: dict[int, list[str]] = defaultdict(list)
        for name in selections:
            found[sum(table.unrecorded for table in self.results(name))].append(name)
        return [left_out(count, " or ".join(names)) for count, names in found.items() if count]

    def honest(self) -> list[list[Table]]:
        """Per setting, the tables of the selections that do not see the test domain, where they choose something."""
        by_rule = [self.results(name) for name in HONEST]
        return [[table for table in tables if not table.is_empty] for tables in zip(*by_rule, strict=True)]
