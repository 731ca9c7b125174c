"""The protocols by name: each is a function that lists the tasks of a dataset, or says why it has none.

A colon sets a protocol's parameters, in their order or by name: `leave-group-out:threes`, `k-sources:3,cap=100`. What
is particular to a dataset (its groupings, its fixed splits) stands on its card.
"""

import inspect
import json
from collections.abc import Callable, Iterable
from functools import partial
from itertools import combinations
from typing import Any

from shiftbed.data import Card
from shiftbed.data.dataset import FixedDomains
from shiftbed.errors import DataError, UnknownNameError
from shiftbed.protocols.specs import Fixed, Flexible, LeaveOut, TargetTrained, TaskSpec
from shiftbed.registry import Registry, did_you_mean

Protocol = Callable[..., list[TaskSpec]]


class Protocols(Registry[Protocol]):
    """The registered protocols; `NAME:PARAMETERS` is a protocol with its parameters set."""

    def __getitem__(self, name: str) -> Protocol:
        stem, _, text = name.partition(":")
        protocol = super().__getitem__(stem)
        return partial(protocol, **_parameters(stem, protocol, text)) if text else protocol


def _parameters(name: str, protocol: Protocol, text: str) -> dict[str, Any]:
    """The values that `text` gives to a protocol's parameters, each of the kind that the function declares."""
    _, *known = inspect.signature(protocol).parameters.values()
    kinds = {parameter.name: parameter.annotation for parameter in known}
    given: dict[str, Any] = {}
    for position, item in enumerate(text.split(",")):
        key, _, value = (part.strip() for part in item.rpartition("="))
        key = key or next(iter(list(kinds)[position:]), "")
        if key not in kinds:
            there = f"it has {', '.join(kinds)}" if kinds else "it has none"
            raise UnknownNameError(f"Protocol {name} has no parameter for '{item}'; {there}.")
        if key in given:
            raise DataError(f"Parameter {key} of protocol {name} is given twice in '{text}'; give it once.")
        try:
            given[key] = value if kinds[key] is str else json.loads(value)
        except ValueError:
            given[key] = value
        if not isinstance(given[key], kinds[key]) or (isinstance(given[key], bool) and kinds[key] is not bool):
            raise DataError(f"Parameter {key} of protocol {name} cannot be '{value}'.")
    return given


PROTOCOLS = Protocols("protocol", "shiftbed.protocols")


@PROTOCOLS.named("leave-one-domain-out")
def leave_one_domain_out(dataset: Card, whole: bool = False) -> list[TaskSpec]:
    """Each domain is tested in turn, by models trained on all the others.

    Args:
        dataset: The dataset's card.
        whole: Test all of the domain, not the part that is not held out for the oracle.
    """
    return [LeaveOut((domain,), whole=whole) for domain in dataset.domains]


@PROTOCOLS.named("leave-one-domain-out-grouped")
def leave_one_domain_out_grouped(dataset: Card) -> list[TaskSpec]:
    """The same, validated and tested only on groups (emoji, patients) that no domain trains on."""
    return [LeaveOut((domain,), grouped=True) for domain in dataset.domains]


@PROTOCOLS.named("leave-group-out")
def leave_group_out(dataset: Card, grouping: str = "", whole: bool = False) -> list[TaskSpec]:
    """Each group of domains is tested in turn.

    The groups are those of the card's grouping of that name or else its first, its clusters, or neighbours two by two.

    Args:
        dataset: The dataset's card.
        grouping: The name of the grouping.
        whole: Test all of the domains, not the part that is not held out for the oracle.
    """
    names = list(dataset.domains)
    groups = dataset.groupings.get(grouping) if grouping else next(iter(dataset.groupings.values()), None)
    if groups is None and grouping:
        raise _unknown(dataset, "grouping", grouping, dataset.groupings)
    if groups is None:
        groups = tuple(dataset.clusters.values()) or tuple(tuple(names[i : i + 2]) for i in range(0, len(names), 2))
    if len(groups) < 2:
        raise DataError(f"{dataset.name} has {len(names)} domains, too few to leave a group of them out.")
    return [LeaveOut(_in_order(dataset, group), whole=whole) for group in groups]


@PROTOCOLS.named("leave-pair-out")
def leave_pair_out(dataset: Card) -> list[TaskSpec]:
    """Every pair of domains is tested together (what domain cross-validation trains)."""
    if len(dataset.domains) < 3:
        raise DataError(f"{dataset.name} has {len(dataset.domains)} domains; leaving a pair out needs at least 3.")
    return [LeaveOut(pair) for pair in combinations(dataset.domains, 2)]


@PROTOCOLS.named("fixed")
def fixed(dataset: Card, split: str = "", cap: int | None = None) -> list[TaskSpec]:
    """The training, validation and test domains that papers fix for this dataset: one split of its card, or each.

    Args:
        dataset: The dataset's card.
        split: The name of one of the card's splits.
        cap: At most so many images of a class and test domain.
    """
    if not dataset.splits:
        raise DataError(f"{dataset.name} has no fixed training and test domains; leave-one-domain-out tests each.")
    if split and split not in dataset.splits:
        raise _unknown(dataset, "split", split, dataset.splits)
    chosen = [dataset.splits[split]] if split else list(dataset.splits.values())
    return [_fixed(dataset, one, cap) for one in chosen]


@PROTOCOLS.named("k-sources")
def k_sources(
    dataset: Card, k: int = 2, cap: int | None = None, equal: bool = False, among: str = ""
) -> list[TaskSpec]:
    """Every k of the domains that the card's split trains on are trained on (of all domains, where it has no split).

    Args:
        dataset: The dataset's card.
        k: How many domains train.
        cap: At most so many images of a class and test domain (CIFAR-10-W's balanced subset is 100).
        equal: Whatever k is, train on as many images as the smallest of these domains has: one source then has as many
            as four together, and only their number differs.
        among: The domains that the k are taken from, joined by "+"; by default all of those above.
    """
    if len(dataset.splits) > 1:
        names = " and ".join(dataset.splits)
        raise DataError(f"{dataset.name} has the splits {names}, so it is open which domains train; use fixed.")
    split = next(iter(dataset.splits.values()), None)
    sources = _in_order(dataset, split.train if split else dataset.domains)
    most = len(sources) if split else len(sources) - 1
    if among:
        some = _in_order(dataset, _joined(among, sources))
        if set(some) - set(sources):
            raise DataError(f"Of {dataset.name}'s domains only {', '.join(sources)} train, not all of {among}.")
        sources, most = some, min(most, len(some))
    if not 1 <= k <= most:
        raise DataError(f"{k} of {dataset.name}'s domains cannot train; between 1 and {most} can.")
    total = min(dataset.domains[name] for name in sources) if equal else None
    if total == 0:
        raise DataError(f"How many images the domains of {dataset.name} have is known once it is prepared.")
    whole = _fixed(dataset, split) if split else Fixed((), ())
    return [
        _fixed(dataset, FixedDomains(train=some, validation=whole.validation, test=whole.test), cap, total)
        for some in combinations(sources, k)
    ]


@PROTOCOLS.named("single-source")
def single_source(dataset: Card, cap: int | None = None, equal: bool = False) -> list[TaskSpec]:
    """Each of these domains alone is trained on, and the others are tested whole."""
    return k_sources(dataset, 1, cap, equal)


@PROTOCOLS.named("flexible-random")
def flexible_random(
    dataset: Card, dominant: int = 2, minor: int | None = None, cap: int = 50, seed: int = 0
) -> list[TaskSpec]:
    """NICO++'s flexible setting with random dominant domains; smaller numbers where there are fewer than 20 domains."""
    domains = len(dataset.domains)
    if minor is None:
        minor = 12 if domains >= 20 else max(1, round((domains - dominant) * 2 / 3))
    return [Flexible(compositional=False, dominant=dominant, minor=minor, cap=cap, seed=seed)]


@PROTOCOLS.named("flexible-compositional")
def flexible_compositional(
    dataset: Card,
    dominant: int = 2,
    minor: int | None = None,
    exclusive: int | None = None,
    cap: int = 50,
    seed: int = 0,
) -> list[TaskSpec]:
    """NICO++'s flexible setting whose dominant domains are never tested; smaller numbers for fewer than 20 domains."""
    domains = len(dataset.domains)
    if exclusive is None:
        exclusive = 4 if domains >= 20 else max(2, round(4 * domains / 20))
    if minor is None:
        minor = 12 if domains >= 20 else max(1, round((domains - exclusive) * 2 / 3))
    return [Flexible(compositional=True, dominant=dominant, minor=minor, exclusive=exclusive, cap=cap, seed=seed)]


@PROTOCOLS.named("target-trained")
def target_trained(dataset: Card) -> list[TaskSpec]:
    """NICO++'s reference: one model trained on a part of all test domains and tested on another part.

    The test domains are those of each of the card's splits, or all domains where it has none.
    """
    return [TargetTrained(names) for names in _tested(dataset)]


@PROTOCOLS.named("target-trained-per-domain")
def target_trained_per_domain(dataset: Card) -> list[TaskSpec]:
    """NICO++'s reference per domain: each test domain trains a model that is tested on another part of it."""
    tested = {name for names in _tested(dataset) for name in names}
    return [TargetTrained((name,)) for name in _in_order(dataset, tested)]


def _tested(dataset: Card) -> list[tuple[str, ...]]:
    splits = [_fixed(dataset, split) for split in dataset.splits.values()]
    return list(dict.fromkeys(one.test for one in splits)) or [tuple(dataset.domains)]


def _fixed(dataset: Card, split: FixedDomains, cap: int | None = None, total: int | None = None) -> Fixed:
    """A split as a spec, its domains in the dataset's order; where it names no test domains, all others are tested."""
    others = [name for name in dataset.domains if name not in {*split.train, *split.validation}]
    train, validation, test = (_in_order(dataset, x) for x in (split.train, split.validation, split.test or others))
    return Fixed(train, test, validation, cap, total)


def _joined(text: str, known: Iterable[str]) -> list[str]:
    """Names from text that joins them by "+", which a known name may have in itself ("+90%")."""
    found = []
    while text:
        fitting = [name for name in known if f"{text}+".startswith(f"{name}+")]
        found.append(max(fitting, key=len, default=text.partition("+")[0]))
        text = text[len(found[-1]) + 1 :]
    return found


def _in_order(dataset: Card, names: Iterable[str]) -> tuple[str, ...]:
    """Domains in the dataset's order, all of which must be there: a pack may lack some."""
    wanted = set(names)
    missing = sorted(wanted - set(dataset.domains))
    if missing:
        raise DataError(f"{dataset.name} as prepared here has no domain {' or '.join(missing)}, which this needs.")
    return tuple(name for name in dataset.domains if name in wanted)


def _unknown(dataset: Card, noun: str, name: str, known: Iterable[str]) -> UnknownNameError:
    there = list(known)
    hint = did_you_mean(name, there) if there else f" It has no {noun}s."
    return UnknownNameError(f"{dataset.name} has no {noun} '{name}'.{hint}")
