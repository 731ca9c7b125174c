"""What an audit finds: one verdict for each source of leakage, with the tables it rests on."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shiftbed.tables.grids import WIDTH, Grid, command_lines, grid_text

Verdict = Literal["clear", "exposed", "alarm", "unknown"]
MEANING: dict[Verdict, str] = {
    "clear": "looked at, and nothing found",
    "exposed": "nothing found, but knowledge of the test domains would pay off here",
    "alarm": "a leak, or something that must be explained",
    "unknown": "these records do not allow an answer",
}


@dataclass(frozen=True)
class Finding:
    """What was found of one source of leakage.

    Attributes:
        source: The source's name.
        verdict: One of `MEANING`.
        sentence: What was found, for people.
        grids: The numbers behind it.
        commands: What to run for a better answer, each with what it does.
    """

    source: str
    verdict: Verdict
    sentence: str
    grids: Sequence[Grid] = ()
    commands: Sequence[tuple[str, str]] = ()

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            "source": self.source,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "tables": [{"title": grid.title, "caption": grid.caption, "rows": list(grid.data)} for grid in self.grids],
            "commands": [{"what": what, "command": command} for what, command in self.commands],
        }


@dataclass(frozen=True)
class Audit:
    """The findings of a sweep.

    Attributes:
        folder: The sweep's folder.
        jobs: How many finished jobs were looked at.
        findings: One for each source of leakage.
    """

    folder: str
    jobs: int
    findings: Sequence[Finding]

    def __getitem__(self, source: str) -> Finding:
        return next(finding for finding in self.findings if finding.source == source)

    @property
    def alarms(self) -> list[Finding]:
        """The findings that must be explained."""
        return [finding for finding in self.findings if finding.verdict == "alarm"]

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {"folder": self.folder, "jobs": self.jobs, "findings": [one.as_dict() for one in self.findings]}

    def text(self, details: bool = True) -> str:
        """The page, at most 80 columns wide: the verdicts, then the numbers behind them."""
        used = dict.fromkeys(finding.verdict for finding in self.findings)
        legend = "; ".join(f"{verdict}: {MEANING[verdict]}" for verdict in MEANING if verdict in used)
        lines = [*_wrapped(f"Audit of {self.folder}: {self.jobs:,} finished jobs"), *_wrapped(f"({legend})"), ""]
        for finding in self.findings:
            lines += _wrapped(f"{finding.verdict.upper():8}{finding.source}: {finding.sentence}", " " * 8)
            for what, command in finding.commands:
                lines += _wrapped(f"{what}:", " " * 8, " " * 8)
                first, *rest = command_lines(command, WIDTH - 12)
                lines += [" " * 10 + first, *(" " * 12 + line for line in rest)]
        shown = [grid for finding in self.findings for grid in finding.grids] if details else []
        return "\n".join([*lines, *(f"\n{grid_text(grid)}" for grid in shown)])


def _wrapped(text: str, after: str = "", first: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=after, break_long_words=True)
