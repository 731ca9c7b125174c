"""Specs: what a protocol lists and a job keeps, enough to make a task's splits again on any machine."""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from itertools import combinations
from typing import Any, ClassVar, Literal

import numpy as np

from shiftbed.data import Card, card, load
from shiftbed.errors import DataError
from shiftbed.hashing import seed_hash
from shiftbed.protocols.splits import Role, Split, Task, capped, dealt, groups_inside, holdout
from shiftbed.registry import refuse_unknown

UNIQUE = "uni_"  # begins the names of NICO++'s domains that are other surroundings for every class


class TaskSpec(ABC):
    """What a protocol lists and a job keeps: enough to make the task's splits again on any machine."""

    kind: ClassVar[str]

    @abstractmethod
    def task(self, dataset: str, trial: int, fraction: float) -> Task:
        """The splits for a trial; `fraction` is the share held out where the protocol holds out."""

    @abstractmethod
    def family(self) -> list[Any]:
        """What tasks must share to stand in one table."""

    def describe(self) -> dict[str, Any]:
        """As JSON, for `job.json`."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class LeaveOut(TaskSpec):
    """Tests some domains and trains on all others, each with its own in/out split.

    Attributes:
        test: The domains that are tested.
        grouped: Keep the examples of a group (an emoji, a patient) on one side, in all domains alike: only groups that
            no domain trains on are validated and tested.
        adapt: The share of every tested domain that is given to the algorithm without labels, and tested nowhere; of
            groups, as near to it as whole ones come.
        whole: Test whole domains (DomainBed-v2), so that no part of them is left for an oracle.
    """

    kind = "leave-out"
    test: tuple[str, ...]
    grouped: bool = False
    adapt: float = 0.0
    whole: bool = False

    def task(self, dataset: str, trial: int, fraction: float) -> Task:
        """Every domain is split; the tested ones report `in` and offer `out` to the oracle."""
        known = card(dataset)
        refuse_unknown("domain", self.test, known.domains, known.name)
        if len(set(self.test)) >= len(known.domains):
            names = ", ".join(self.test)
            raise DataError(
                f"Testing {names} of {known.name} leaves no domain to train on; test fewer, or add a domain."
            )
        splits = []
        for position, domain in enumerate(known.domains):
            tested = domain in self.test
            if tested and self.whole:
                splits.append(Split(domain, "all", "test", np.arange(known.domains[domain])))
                continue
            if self.grouped:
                inside, outside = _grouped(known, domain, fraction, trial, self.test)
            else:
                inside, outside = _in_out(known, domain, fraction, seed_hash(trial, position))
            if tested and self.adapt:
                both = len(inside) + len(outside)
                given = int(self.adapt * both)
                if not 0 < given < len(inside):
                    raise DataError(
                        f"Domain '{domain}' of {known.name} cannot give {self.adapt:g} of itself unlabelled, since "
                        f"{len(outside) / both:.2g} are held out and the rest is tested; give less than "
                        f"{len(inside) / both:.2g}."
                    )
                inside, unlabelled = self._given(known, domain, inside, given)
                splits.append(Split(domain, "rest", "unlabelled", unlabelled))
            splits.append(Split(domain, "in", "test" if tested else "train", inside))
            splits.append(Split(domain, "out", "test" if tested else "validation", outside))
        return Task(tuple(splits))

    def _given(self, known: Card, domain: str, inside: np.ndarray, given: int) -> tuple[np.ndarray, np.ndarray]:
        """What is left of a tested domain's images, and those, so many, that are given; groups stay on one side."""
        if not self.grouped:
            return inside[given:], inside[:given]
        left, unlabelled = dealt(inside, np.asarray(load(known.name)[domain].groups), given, len(inside))
        if len(left) == 0:
            raise DataError(
                f"Domain '{domain}' of {known.name} has too few groups to give {self.adapt:g} of it unlabelled and "
                "test the rest; add groups, or give less."
            )
        return left, unlabelled

    def family(self) -> list[Any]:
        """As many domains tested together, split in the same way."""
        rest = [*([self.adapt] if self.adapt else []), *(["whole"] if self.whole else [])]
        return [self.kind, len(self.test), self.grouped, *rest]

    def describe(self) -> dict[str, Any]:
        """As JSON; what was added later is left out at its default, so that descriptions of before stay equal."""
        return {name: value for name, value in super().describe().items() if name != "whole" or value}


@dataclass(frozen=True)
class Fixed(TaskSpec):
    """Trains, validates and tests on stated domains; tested domains are tested whole.

    Attributes:
        train: The domains that are trained on.
        test: The domains that are tested.
        validation: Whole domains to validate on; then training uses all of its domains (OoD-Bench). Without them a part
            of every training domain is held out.
        cap: At most so many images of a class and test domain (CIFAR-10-W's balanced subset is 100).
        total: Use so many images in all for training and its held-out part, in equal shares of the training domains.
    """

    kind = "fixed"
    train: tuple[str, ...]
    test: tuple[str, ...]
    validation: tuple[str, ...] = ()
    cap: int | None = None
    total: int | None = None

    def __post_init__(self) -> None:
        _refuse_below(1, cap=self.cap, total=self.total)

    def task(self, dataset: str, trial: int, fraction: float) -> Task:
        """The splits in the order training, validation, test."""
        known = card(dataset)
        refuse_unknown("domain", (*self.train, *self.validation, *self.test), known.domains, known.name)
        self._refuse_overlap(known)
        positions = {domain: position for position, domain in enumerate(known.domains)}
        splits = []
        for domain in self.train:
            share = known.domains[domain] if self.total is None else self.total // len(self.train)
            if not 0 < share <= known.domains[domain]:
                has = f"Domain '{domain}' of {known.name} has {known.domains[domain]} examples"
                raise DataError(f"{has}, of which {share} cannot be used.")
            seed = seed_hash(trial, positions[domain])
            if self.validation:
                order = np.random.RandomState(seed).permutation(known.domains[domain])
                splits.append(Split(domain, "all", "train", np.sort(order[:share])))
                continue
            inside, outside = _in_out(known, domain, fraction, seed, share)
            splits += [Split(domain, "in", "train", inside), Split(domain, "out", "validation", outside)]
        for domain in self.validation:
            splits.append(Split(domain, "all", "validation", np.arange(known.domains[domain])))
        for domain in self.test:
            indices = np.arange(known.domains[domain])
            if self.cap is not None:
                indices = capped(np.asarray(load(dataset)[domain].labels), self.cap, seed_hash(0, positions[domain]))
            splits.append(Split(domain, "all", "test", indices))
        return Task(tuple(splits))

    def _refuse_overlap(self, known: Card) -> None:
        """Whole domains have one role: what is trained on, or selected on, would be tested or validated again."""
        used = {"trained on": self.train, "validated on": self.validation, "tested": self.test}
        for (one, first), (other, second) in combinations(used.items(), 2):
            both = [name for name in first if name in second]
            if both:
                raise DataError(
                    f"Domain '{both[0]}' of {known.name} cannot be both {one} and {other}; name it only once."
                )

    def family(self) -> list[Any]:
        """The same training and validation, the same selection of test images."""
        return [self.kind, list(self.train), list(self.validation), self.cap, self.total]


@dataclass(frozen=True)
class Flexible(TaskSpec):
    """NICO++'s flexible settings: every class has its own dominant, minor and test domains.

    *Random*: the dominant domains of a class are drawn from the common ones (NICO++'s `uni_` are each class's own), the
    minor ones from the rest, and the others are tested. *Compositional*: some domains are set aside for training; each
    class has its dominant ones among them and its minor and test ones among the others, so that no dominant domain is
    tested for any class.

    Attributes:
        compositional: Which of the two.
        dominant: Dominant domains a class, all of whose images train.
        minor: Minor domains a class, of which `cap` images train.
        exclusive: Domains set aside for training (compositional).
        cap: Images of each minor and each test domain of a class.
        seed: Draws the assignment, once for all trials.
    """

    kind = "flexible"
    compositional: bool
    dominant: int = 2
    minor: int = 12
    exclusive: int = 4
    cap: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        _refuse_below(1, dominant=self.dominant, exclusive=self.exclusive, cap=self.cap)
        _refuse_below(0, minor=self.minor)

    def assignment(self, dataset: str) -> dict[int, dict[str, Role | Literal["dominant"]]]:
        """For every class its domains: `dominant`, `train` (minor) or `test`."""
        data = load(dataset)
        random = np.random.RandomState(seed_hash(self.seed, dataset, self.kind))
        exclusive = set(random.permutation(list(data.card.domains))[: self.exclusive]) if self.compositional else set()
        roles = {}
        for label in range(len(data.card.classes)):
            present = [domain.name for domain in data.domains if (np.asarray(domain.labels) == label).any()]
            main = [name for name in present if (name in exclusive if exclusive else not name.startswith(UNIQUE))]
            others = [name for name in present if name not in exclusive]
            dominant = random.permutation(main)[: self.dominant].tolist()
            rest = random.permutation([name for name in others if name not in dominant]).tolist()
            if len(dominant) < self.dominant or len(rest) <= self.minor:
                name = data.card.classes[label]
                needs = f"{self.dominant} dominant, {self.minor} minor and some test domains"
                raise DataError(f"Class '{name}' of {dataset} is in {len(present)} domains, too few for {needs}.")
            roles[label] = {
                **dict.fromkeys(dominant, "dominant"),
                **dict.fromkeys(rest[: self.minor], "train"),
                **dict.fromkeys(rest[self.minor :], "test"),
            }
        return roles  # type: ignore[return-value]

    def task(self, dataset: str, trial: int, fraction: float) -> Task:
        """Training images are held out in the usual share; test images are whole."""
        data, roles = load(dataset), self.assignment(dataset)
        splits = []
        for position, domain in enumerate(data.domains):
            chosen: dict[str, list[np.ndarray]] = {"train": [], "test": []}
            for label, by_domain in roles.items():
                role = by_domain.get(domain.name)
                examples = np.flatnonzero(np.asarray(domain.labels) == label)
                if role in ("train", "test"):
                    order = np.random.RandomState(seed_hash(self.seed, domain.name, label)).permutation(len(examples))
                    examples = examples[order[: self.cap]]
                if role is not None:
                    chosen["test" if role == "test" else "train"].append(examples)
            train, test = (np.sort(np.concatenate([*parts, np.empty(0, np.int64)])) for parts in chosen.values())
            if len(train):
                inside, outside = holdout(len(train), fraction, seed_hash(trial, position))
                _refuse_empty(data.card, domain.name, len(train), fraction, inside, outside)
                splits.append(Split(domain.name, "in", "train", train[inside].astype(np.int64)))
                splits.append(Split(domain.name, "out", "validation", train[outside].astype(np.int64)))
            if len(test):
                splits.append(Split(domain.name, "all", "test", test.astype(np.int64)))
        return Task(tuple(splits))

    def family(self) -> list[Any]:
        """One setting, one table."""
        return list(self.describe().values())


@dataclass(frozen=True)
class TargetTrained(TaskSpec):
    """NICO++'s references: trained on the test domains themselves, divided 7:1:2 into training, validation and test.

    Attributes:
        domains: The domains, pooled; one alone is the reference per domain.
    """

    kind = "target-trained"
    domains: tuple[str, ...]

    def task(self, dataset: str, trial: int, fraction: float) -> Task:
        """`in` trains, `out` validates, the `rest` is tested."""
        known = card(dataset)
        refuse_unknown("domain", self.domains, known.domains, known.name)
        splits = []
        for position, (domain, count) in enumerate(known.domains.items()):
            if domain in self.domains:
                order = np.random.RandomState(seed_hash(trial, position)).permutation(count)
                first, second = int(0.7 * count), int(0.8 * count)
                if not 0 < first < second:
                    raise DataError(f"Domain '{domain}' of {known.name} has {count} examples, too few for 7:1:2.")
                splits.append(Split(domain, "in", "train", order[:first]))
                splits.append(Split(domain, "out", "validation", order[first:second]))
                splits.append(Split(domain, "rest", "test", order[second:]))
        return Task(tuple(splits))

    def family(self) -> list[Any]:
        """As many domains pooled."""
        return [self.kind, len(self.domains)]


SPECS: dict[str, type[TaskSpec]] = {cls.kind: cls for cls in (LeaveOut, Fixed, Flexible, TargetTrained)}


def spec_of(description: dict[str, Any]) -> TaskSpec:
    """The spec that `describe` wrote."""
    cls = SPECS[description["kind"]]
    known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    given = {name: value for name, value in description.items() if name in known}
    return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


@lru_cache(maxsize=4096)
def make_task(spec: TaskSpec, dataset: str, version: int | str, trial: int, fraction: float) -> Task:
    """A spec's task; made once for all algorithms and draws."""
    return spec.task(dataset, trial, fraction)


def _in_out(
    known: Card, domain: str, fraction: float, seed: int, share: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """A domain's in/out split; of a share of its examples, each part is the beginning of the whole domain's."""
    count = known.domains[domain]
    inside, outside = holdout(count, fraction, seed)
    if share is not None:
        count, held_out = share, int(share * fraction)
        inside, outside = inside[: share - held_out], outside[:held_out]
    _refuse_empty(known, domain, count, fraction, inside, outside)
    return inside, outside


def _refuse_empty(
    known: Card, domain: str, count: int, fraction: float, inside: np.ndarray, outside: np.ndarray
) -> None:
    if len(outside) == 0 or len(inside) == 0:
        examples = "1 example" if count == 1 else f"{count} examples"
        raise DataError(
            f"Domain '{domain}' of {known.name} has {examples}, too few to hold out {fraction:g} of them; add images, "
            "or leave the domain out of the dataset."
        )


def _refuse_below(least: int, **numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < least:
            raise DataError(f"A protocol's {name} is {least} or more, not {number}.")


def _grouped(
    known: Card, domain: str, fraction: float, trial: int, tested: tuple[str, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """A domain's in/out split by groups; of a tested one only groups count that no domain trains on."""
    groups = {one.name: np.asarray(one.groups) for one in load(known.name).domains if one.groups is not None}
    if domain not in groups:
        raise DataError(f"Domain '{domain}' of {known.name} has no groups to keep together.")
    mine = groups[domain]
    parts = _by_groups(known.name, known.version, fraction, trial)
    inside, outside = parts[domain]
    if domain in tested:
        trained = np.concatenate([groups[name][part] for name, (part, _) in parts.items() if name not in tested])
        free = np.flatnonzero(~np.isin(mine, trained))
        # Out are as many groups as elsewhere, but not more than half of those that are left.
        every = max(2, round(len(np.unique(mine[free])) / (fraction * len(np.unique(mine)))))
        inside, outside = dealt(free, mine, 1, every)
    if len(outside) == 0 or len(inside) == 0:
        raise DataError(
            f"Domain '{domain}' of {known.name} has too few groups to hold out {fraction:g} of them; add groups, or "
            "take a protocol that does not look at them (leave-one-domain-out)."
        )
    return inside, outside


@lru_cache(maxsize=64)
def _by_groups(
    dataset: str, version: int | str, fraction: float, trial: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The in/out splits by groups of all domains, tested or not: all tasks of a trial begin with these."""
    groups = {one.name: np.asarray(one.groups) for one in load(dataset).domains if one.groups is not None}
    kept = groups_inside(list(groups.values()), fraction, seed_hash(trial, "groups"))
    inside = {name: np.isin(mine, kept) for name, mine in groups.items()}
    return {name: (np.flatnonzero(mine), np.flatnonzero(~mine)) for name, mine in inside.items()}
