"""What a sweep would take, before it starts; and the largest sweep that a budget allows."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from shiftbed.errors import DataError, HparamError
from shiftbed.networks.weights import weights_are_here
from shiftbed.sweeps.cautions import cautions
from shiftbed.sweeps.costs import Cost, Kind, disk_bytes, kinds, known_costs, measured_costs
from shiftbed.sweeps.plan import Request, plan
from shiftbed.sweeps.records import outcomes
from shiftbed.sweeps.stages import most_reruns, second_stage
from shiftbed.training.device import Runtime
from shiftbed.training.job import Job
from shiftbed.training.store import Store

OnProbe = Callable[[str, int, int], None]  # what is measured, how many are, how many there are
UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Forecast:
    """What a sweep would take.

    Attributes:
        jobs: How many jobs there are, without those of a second stage.
        reruns: How many jobs the second stage has at most, without those that are done.
        done: How many of the jobs are done; None if that cannot be told on this machine.
        seconds: Of the jobs that are left, one after another, by dataset and algorithm; kinds without an estimate lack.
        unknown: The kinds without an estimate.
        disk: Bytes of all records.
        notes: What could not be told, and where the papers warn.
    """

    jobs: int
    reruns: int
    done: int | None
    seconds: Mapping[Kind, float]
    unknown: tuple[Kind, ...]
    disk: int
    notes: tuple[str, ...]

    @property
    def device_hours(self) -> float | None:
        """Hours that one worker would need for all that is left, or None where nothing is known."""
        return sum(self.seconds.values()) / 3600 if self.seconds else None


def forecast(
    request: Request,
    store: Store,
    runtime: Runtime = Runtime(),  # noqa: B008  # it is frozen
    probe: bool = True,
    on_probe: OnProbe = lambda part, done, total: None,
) -> Forecast:
    """What a request would take; data and weights that are not on this machine only leave gaps in it.

    Args:
        request: What is asked for.
        store: The sweep's folder, where some of it may be done.
        runtime: The device to measure on.
        probe: Measure a few steps of each kind of job that the store has no times of.
        on_probe: Told the progress of that.
    """
    jobs, reruns = plan(request), most_reruns(request)
    left, done, notes = _left(jobs, store)
    costs, gaps = _costs(left, done or [], store, runtime, probe, on_probe)
    by_kind, every = kinds(left), kinds([*left, *(done or [])])
    again = _reruns_left(request, left, done, store)
    each = again / len(jobs)  # the winners are taken to cost what jobs cost on average
    seconds = {
        kind: sum(map(costs[kind], by_kind.get(kind, []))) + each * sum(map(costs[kind], some))
        for kind, some in every.items()
        if kind in costs and (again or kind in by_kind)
    }
    return Forecast(
        jobs=len(left) + len(done or []),
        reruns=again,
        done=None if done is None else len(done),
        seconds=seconds,
        unknown=tuple(kind for kind in by_kind if kind not in costs),
        disk=round((1 + reruns / len(jobs)) * disk_bytes(jobs)),
        notes=(*notes, *gaps, *cautions(request)),
    )


def _reruns_left(request: Request, left: list[Job], done: list[Job] | None, store: Store) -> int:
    """How many jobs of a second stage are not done: at most, until the first has ended and the winners are known."""
    if left or done is None:
        return most_reruns(request)
    finished = outcomes(store)
    return sum(job.id not in finished for job in second_stage(request, store))


def _left(jobs: list[Job], store: Store) -> tuple[list[Job], list[Job] | None, list[str]]:
    """The jobs that are not done and those that are, without doubles; None and a sentence where that is not known."""
    for recipe in {id(job.recipe): job.recipe for job in jobs}.values():
        if not weights_are_here(recipe.initial_weights, recipe.network):
            why = f"The initial weights {recipe.initial_weights} are not on this machine"
            return _distinct(jobs), None, [f"{why}: how much is done already cannot be told here."]
    try:
        unique = {job.id: job for job in jobs}
    except DataError as error:  # a dataset is not prepared, and its card does not say enough
        return _distinct(jobs), None, [f"How much is done already cannot be told here: {error}"]
    finished = outcomes(store)
    done = [job for job_id, job in unique.items() if job_id in finished]
    return [job for job_id, job in unique.items() if job_id not in finished], done, []


def _distinct(jobs: list[Job]) -> list[Job]:
    """Jobs without those that are the same, where there are no ids to tell."""
    return list({(job.dataset, job.algorithm, job.spec, job.trial, job.values): job for job in jobs}.values())


def _costs(
    left: list[Job],
    done: list[Job],
    store: Store,
    runtime: Runtime,
    probe: bool,
    on_probe: OnProbe,
) -> tuple[dict[Kind, Cost], list[str]]:
    """What each kind of job costs, from those that are done or from a probe; and a sentence where neither can tell."""
    costs = known_costs(kinds(done), store)
    others = {kind: some for kind, some in kinds(left).items() if kind not in costs}
    if not others:
        return costs, []
    if not probe:
        return costs, ["Kinds of jobs of which none is done have no estimate; `--probe` measures a few steps."]
    measured, gaps = measured_costs(others, runtime, on_probe)
    return costs | measured, gaps


def largest_within(
    request: Request,
    store: Store,
    seconds: float,
    runtime: Runtime = Runtime(),  # noqa: B008  # it is frozen
    on_probe: OnProbe = lambda part, done, total: None,
) -> Request:
    """The request with as many draws, equally many for every algorithm, as fit into so many seconds of one worker.

    Args:
        request: What is asked for; its draws are the most there will be.
        store: The sweep's folder: what is done costs nothing.
        seconds: The budget.
        runtime: The device to measure on.
        on_probe: Told the progress of measuring.

    Raises:
        HparamError: Not even one draw fits, or the cost of some jobs cannot be told.
    """
    jobs = plan(request)
    left, done, notes = _left(jobs, store)
    costs, gaps = _costs(left, done or [], store, runtime, True, on_probe)
    unknown = [job for job in left if (job.dataset, job.algorithm) not in costs]
    if unknown:
        raise HparamError(f"A budget needs the cost of every job. {(gaps or notes)[0]}")
    by_draw, whole = [0.0] * request.draws, 0.0
    for job in left:
        by_draw[job.draw] += costs[job.dataset, job.algorithm](job)
    for job in [*left, *(done or [])]:
        whole += costs[job.dataset, job.algorithm](job)
    draws, used = 0, _reruns_left(request, left, done, store) * whole / max(1, len(left) + len(done or []))
    while draws < request.draws:
        used += by_draw[draws]
        if used > seconds:
            break
        draws += 1
    if not draws or (draws < request.draws and request.groups):
        least = "all settings" if request.groups else "one draw"
        raise HparamError(
            f"The budget of {seconds / 3600:.2g} h does not hold {least} of every algorithm (about "
            f"{used / 3600:.2g} h); name fewer algorithms, datasets, test domains or trials."
        )
    return replace(request, draws=draws)


def parse_duration(text: str) -> float:
    """Seconds of `8h`, `90min`, `1.5d`.

    Raises:
        HparamError: It is no duration.
    """
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([a-z]+)", text.strip().lower())
    if not found or found[2] not in UNITS or not float(found[1]):
        raise HparamError(f"A budget is a time such as 8h, 90min or 2d, not '{text}'.")
    return float(found[1]) * UNITS[found[2]]
