"""Shift as numbers with their doubt: the one shape in which every measure of this room answers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

LITTLE = 0.05  # shift below it is called little
ACCURACY = "accuracy"  # among the details of both shifts: of telling held-out examples apart
WIDE = "too wide to conclude how far apart the sides are; measure more examples"  # a note's words on an interval
NEARLY_SURE = "at delta 0.1"  # among the details of diversity shift: what it is if a network need be but 90 % sure


@dataclass(frozen=True)
class ShiftEstimate:
    """One measure of shift between two sides, with its uncertainty.

    Attributes:
        name: What is measured: "diversity", "correlation", "covariate", "mmd", …
        value: The estimate; measures that are bounded lie within their bounds.
        standard_error: Its standard error, or None where none can be told.
        interval: The 95 % interval, or None where none can be told.
        count: How many examples of each side (of the smaller, where they differ) it rests on.
        notes: What the reader must know: what was left out, what is too wide to conclude from.
        details: Companions by name (the accuracy of telling the domains apart, the null level, …).
    """

    name: str
    value: float
    standard_error: float | None = None
    interval: tuple[float, float] | None = None
    count: int = 0
    notes: tuple[str, ...] = ()
    details: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_too_wide(self) -> bool:
        """Whether nothing follows from it, as its notes say."""
        return any(WIDE in note for note in self.notes)

    def as_json(self) -> dict[str, Any]:
        """What `json.dumps` takes and `from_json` reads."""
        return {**asdict(self), "notes": list(self.notes), "details": dict(self.details)}

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> "ShiftEstimate":
        """The estimate that `as_json` wrote."""
        interval = read["interval"]
        return cls(
            **{
                **read,
                "interval": None if interval is None else (float(interval[0]), float(interval[1])),
                "notes": tuple(read["notes"]),
            }
        )

    def __str__(self) -> str:
        words = f"{self.name} {self.value:.3f}"
        if self.standard_error is not None:
            words += f" ± {self.standard_error:.3f}"
        if self.interval is not None:
            words += f" (95 %: {self.interval[0]:.3f} to {self.interval[1]:.3f})"
        return f"{words}, n = {self.count:,}"


def dominant(diversity: ShiftEstimate, correlation: ShiftEstimate) -> str | None:
    """The kind of shift that dominates; None where there is little of both, or they cannot be told apart.

    They cannot where intervals overlap. Nor can correlation shift be said to dominate where there would be more of
    diversity shift if the network had to be less sure of a side: what it has not learned of one counts as the other.
    """
    larger, smaller = (diversity, correlation) if diversity.value > correlation.value else (correlation, diversity)
    if larger.value < LITTLE:
        return None
    if larger.interval and smaller.interval and larger.interval[0] <= smaller.interval[1]:
        return None
    if larger is correlation and diversity.details.get(NEARLY_SURE, 0.0) > correlation.value:
        return None
    return larger.name
