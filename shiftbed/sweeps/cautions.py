"""Where the papers warn of what a sweep is about to do, in one line each."""

from collections.abc import Iterator
from dataclasses import replace

from shiftbed.data import card
from shiftbed.protocols import LeaveOut
from shiftbed.sweeps.plan import Part, Request, parts

SUPERVISED = ("imagenet", "in1k", "in21k", "in12k", "in22k")  # in the names of weights that learned from labels
SELF_SUPERVISED = ("mae", "dino", "moco", "simclr", "clip", "swsl", "ssl")


def cautions(request: Request) -> list[str]:
    """What DomainBed-v2 and OoD-Bench would say of a request."""
    reported = replace(request, selections=(), lean=False)  # without the pairs that only serve a selection
    return list(_cautions(list(parts(reported))))


def _cautions(asked: list[Part]) -> Iterator[str]:
    weights = sorted({part.recipe.initial_weights or "" for part in asked})
    labelled = [name for name in weights if _is_supervised(name)]
    if labelled:
        yield (
            f"Supervised weights ({', '.join(labelled)}) leak labels much like those of the test domains (Yu et al., "
            "2024); compare with `--recipe domainbed-v2` or `domainbed-v2-scratch`."
        )
    tested = [len(spec.test) for part in asked for spec in part.specs if isinstance(spec, LeaveOut)]
    if tested and max(tested) == 1:
        yield (
            "Each model is tested on one domain, which lets choices fit that domain (Yu et al., 2024); "
            "`--protocol leave-group-out` tests several at once."
        )
    kinds = {card(part.dataset).shift for part in asked}
    known = sorted(kind for kind in kinds if kind)
    if len(known) == 1 and None not in kinds:
        other = "correlation" if known[0] == "diversity" else "diversity"
        yield (
            f"All datasets have {known[0]} shift, and what helps there may harm under {other} shift (Ye et al., 2022); "
            f"add a dataset of that kind (`shiftbed datasets`)."
        )


def _is_supervised(weights: str) -> bool:
    name = weights.lower()
    return any(word in name for word in SUPERVISED) and not any(word in name for word in SELF_SUPERVISED)
