"""The selection rules."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shiftbed.registry import Registry
from shiftbed.selection.evidence import Choice, Column, Evidence, JobRecords

VALIDATION = Column("validation", None, "accuracy")
TEST_HELD_OUT = Column("test", "out", "accuracy")


@dataclass(frozen=True)
class Selection:
    """A registered rule.

    Attributes:
        name: The rule's name.
        rule: Picks from evidence.
        columns: What it reads.
        oracle: Whether it looks at the test domain; its numbers are marked wherever they are printed.
        summary: What it does, for footnotes.
    """

    name: str
    rule: Callable[[Evidence], Choice | None]
    columns: frozenset[Column]
    oracle: bool
    summary: str

    def choose(self, jobs: Sequence[JobRecords]) -> Choice | None:
        """Picks among the finished jobs of one cell."""
        return self.rule(Evidence(jobs, self.columns))


SELECTIONS: Registry[Selection] = Registry("selection", "shiftbed.selection")


def selection(
    name: str, *columns: Column, oracle: bool = False
) -> Callable[[Callable[[Evidence], Choice | None]], Callable[[Evidence], Choice | None]]:
    """Registers a rule with the columns it reads; its docstring is its summary."""

    def wrap(rule: Callable[[Evidence], Choice | None]) -> Callable[[Evidence], Choice | None]:
        SELECTIONS.add(name, Selection(name, rule, frozenset(columns), oracle, rule.__doc__ or ""))
        return rule

    return wrap


@selection("training-domain-validation", VALIDATION)
def training_domain_validation(evidence: Evidence) -> Choice | None:
    """The draw and step with the best accuracy on held-out images of the training domains (mean over domains)."""
    return evidence.best(lambda record: record.mean(VALIDATION))


@selection("oracle", TEST_HELD_OUT, oracle=True)
def oracle(evidence: Evidence) -> Choice | None:
    """The draw whose last step is best on held-out images of the test domain: one look at the test domain a draw."""
    return evidence.best(lambda record: record.mean(TEST_HELD_OUT), last_only=True)
