"""Running benchmarks: a whole one or a stated part of it, and what comes out beside the paper's numbers."""

import importlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from shiftbed.algorithms import ALGORITHMS, load_code
from shiftbed.audit.ledger import read_tables
from shiftbed.benchmarks.comparing import beside, compare, ranks_beside, scores_beside, usual_n
from shiftbed.benchmarks.spec import AccuracyPart, Benchmark, Part, ShiftPart, SweepPart, find, read
from shiftbed.benchmarks.views import Number
from shiftbed.data import card
from shiftbed.errors import ShiftbedError, UnknownNameError
from shiftbed.hashing import canonical
from shiftbed.registry import listed, refuse_unknown
from shiftbed.sweeps.designs import DESIGNS
from shiftbed.sweeps.plan import Request, plan
from shiftbed.sweeps.plan import parts as plan_parts
from shiftbed.sweeps.pool import Progress
from shiftbed.sweeps.records import outcomes
from shiftbed.sweeps.stages import second_stage
from shiftbed.sweeps.verbs import sweep
from shiftbed.tables import Estimate, Grid, Leaderboard, Table, leaderboards
from shiftbed.tables.cells import Tested, reported_columns
from shiftbed.training.device import Precision, default_precision, find_runtimes
from shiftbed.training.run import Keep
from shiftbed.training.store import LocalStore

ROOMS = {"shift": "shiftbed.shift.studies", "accuracy": "shiftbed.accuracy.benchmark"}  # each has `run(part, out)`


@dataclass(frozen=True)
class Outcome:
    """What a benchmark came to.

    Attributes:
        benchmark: The benchmark as it was run.
        grids: Our tables beside the paper's, and leaderboards.
        progress: How its sweep ended, if it is one.
        unshown: The parts of a sweep that have no table: no job of them is finished, or what they test together others
            test alone, as domain cross-validation needs it.
    """

    benchmark: Benchmark
    grids: list[Grid]
    progress: Progress | None = None
    unshown: tuple[str, ...] = ()


def benchmark(
    name: str | Benchmark,
    out: str | Path,
    *,
    datasets: Sequence[str] = (),
    algorithms: Sequence[str] = (),
    parts: Sequence[str] = (),
    draws: int | None = None,
    trials: int | None = None,
    steps: int | None = None,
    selections: Sequence[str] = (),
    train: bool = True,
    workers: int | None = None,
    jobs_per_device: int | None = None,
    device: str | None = None,
    precision: Precision | None = None,
    deterministic: bool = False,
    on: Literal["local", "ray", "slurm"] = "local",
    keep: Keep = "none",
    code: Sequence[str | Path] = (),
    on_change: Callable[[Progress], None] = lambda progress: None,
    on_number: Callable[[str, int, int], None] = lambda part, done, total: None,
) -> Outcome:
    """Runs a benchmark, or a stated part of it, and sets what comes out beside the paper's numbers.

    Args:
        name: The benchmark's name, the path of a file (`.yaml`), or a benchmark.
        out: The folder for its records; the same folder again continues it.
        datasets: Only these datasets; the successor of one that can no longer be had stands for it.
        algorithms: Only these algorithms; others than the benchmark's own may be named too.
        parts: Only these parts.
        draws: Draws, instead of the paper's.
        trials: Trials, instead of the paper's.
        steps: Updates, instead of the recipe's.
        selections: Only these of its selections.
        train: Run what is not done yet, or measure it; without it the tables show what there is, and neither data nor
            initial weights have to be here.
        workers: Processes.
        jobs_per_device: How many jobs share a GPU; by default as many as the first were seen to leave room for.
        device: Where to train.
        precision: The arithmetic.
        deterministic: On GPUs, use only kernels that repeat themselves to the bit.
        on: Where jobs run.
        keep: Which weights to keep, or logits.
        code: Files that register algorithms.
        on_change: Called several times a second with the progress of a sweep.
        on_number: Called after every number that another kind of benchmark measures, with its part, how many there are
            by now and how many there will be.

    Raises:
        ShiftbedError: A name is unknown, or nothing is left to run.
    """
    for path in listed(code):
        load_code(Path(path))
    whole = load(name)
    datasets, algorithms, parts, selections = map(listed, (datasets, algorithms, parts, selections))
    asked = narrowed(whole, datasets, algorithms, parts, draws, trials, steps, selections)
    if asked.kind != "sweep":
        return Outcome(asked, [_measured(whole, part, Path(out), train, on_number) for part in asked.parts])
    progress = None
    if train:
        precision = precision or default_precision(find_runtimes(device)[0])
        requests = [request_of(part, precision) for part in _sweep_parts(asked)]
        progress = sweep(
            requests,
            out,
            workers=workers,
            jobs_per_device=jobs_per_device,
            device=device,
            precision=precision,
            deterministic=deterministic,
            on=on,
            keep=keep,
            code=code,
            on_change=on_change,
        )
    grids, unshown = results(whole, asked, out, precision)
    return Outcome(asked, grids, progress, unshown)


def load(name: str | Benchmark) -> Benchmark:
    """A benchmark by its name or file."""
    if isinstance(name, Benchmark):
        return name
    return read(name) if name.endswith((".yaml", ".yml")) else find(name)


def narrowed(
    whole: Benchmark,
    datasets: Sequence[str] = (),
    algorithms: Sequence[str] = (),
    parts: Sequence[str] = (),
    draws: int | None = None,
    trials: int | None = None,
    steps: int | None = None,
    selections: Sequence[str] = (),
) -> Benchmark:
    """A stated part of a benchmark.

    Raises:
        ShiftbedError: A name is unknown, or nothing is left.
    """
    kept: list[Part] = list(whole.parts)
    where = f"Benchmark {whole.name}"
    if parts:
        refuse_unknown("part", parts, [part.name for part in whole.parts], where, UnknownNameError)
        kept = [part for part in kept if part.name in parts]
    if datasets:
        successors = {name: card(name).superseded_by for name in whole.datasets if whole.kind == "sweep"}
        known = [*whole.datasets, *(name for name in successors.values() if name)]
        pattern = next((part for part in kept if isinstance(part, ShiftPart) and part.any_dataset), None)
        if pattern is not None:
            others = [card(name).name for name in datasets if name not in known]
            kept += [pattern.model_copy(update={"dataset": name, "name": name}) for name in others]
            known += others
        refuse_unknown("dataset", datasets, known, where, UnknownNameError)
        renamed = [(part, name) for part in kept for name in (part.dataset, successors.get(part.dataset))]
        kept = [part.model_copy(update={"dataset": name}) for part, name in renamed if name in datasets]
    if whole.kind == "sweep":
        chosen = list(dict.fromkeys(ALGORITHMS.canonical_name(name) for name in algorithms))
        changed = [_changed(part, draws, trials, steps) for part in kept if isinstance(part, SweepPart)]
        if chosen:
            others = [name for name in chosen if name not in whole.algorithms]
            changed = [part.model_copy(update={"algorithms": _kept(part, chosen, others)}) for part in changed]
        changed = _selected(whole, changed, selections)
        kept = [part for part in changed if part.algorithms and part.selections]
    elif algorithms or draws or trials or steps or selections:
        raise ShiftbedError(f"Benchmark {whole.name} trains nothing: only its datasets and parts can be chosen.")
    if not kept:
        raise ShiftbedError(f"Nothing of benchmark {whole.name} is left; name fewer datasets, algorithms or parts.")
    return whole.model_copy(update={"parts": tuple(kept)})


def _selected(whole: Benchmark, parts: list[SweepPart], selections: Sequence[str]) -> list[SweepPart]:
    """Parts with some of their selections; with all if none is named."""
    known = list(dict.fromkeys(name for part in parts for name in part.selections))
    refuse_unknown("selection", selections, known, f"Benchmark {whole.name}", UnknownNameError)
    wanted = selections or known
    return [
        part.model_copy(update={"selections": tuple(name for name in part.selections if name in wanted)})
        for part in parts
    ]


def _changed(part: SweepPart, draws: int | None, trials: int | None, steps: int | None) -> SweepPart:
    """A part with other numbers."""
    search = part.search
    if draws is not None and not DESIGNS[search.design].stated:
        search = search.model_copy(update={"draws": draws, "groups": search.groups[:draws]})
    if trials is not None:
        search = search.model_copy(update={"trials": trials})
    fields = {**part.fields, **({} if steps is None else {"steps": steps})}
    return part.model_copy(update={"search": search, "fields": fields})


def _kept(part: SweepPart, chosen: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """Those of its algorithms that were chosen, and others where the part is not about one in particular."""
    is_open = part.published is None or "algorithm" not in part.published.labels
    return (*(name for name in part.algorithms if name in chosen), *(others if is_open else ()))


def _sweep_parts(asked: Benchmark) -> list[SweepPart]:
    return [part for part in asked.parts if isinstance(part, SweepPart)]


def request_of(part: SweepPart, precision: Precision | None = None) -> Request:
    """What a sweep is asked for, to run a part."""
    return Request(
        datasets=(part.dataset,),
        algorithms=part.algorithms,
        draws=part.search.draws,
        trials=part.search.trials,
        test_domains=part.test,
        recipe=part.recipe,
        protocol=part.protocol,
        selections=part.selections,
        design=part.search.design,
        groups=part.search.groups,
        fields={**part.fields, **({} if precision is None else {"precision": precision})},
        overrides=part.overrides,
    )


def job_count(part: Part) -> int:
    """How many jobs a part has, or measurements, or predictions of one classifier's accuracy.

    Nothing of it has to be on this machine: neither data nor initial weights.
    """
    if isinstance(part, ShiftPart):
        return len(part.options()) * part.runs
    if isinstance(part, AccuracyPart):
        return len(part.classifiers) * part.averaged * len(part.predictors)
    assert isinstance(part, SweepPart)
    request = request_of(part)
    cells = sum(len(one.specs) * len(one.by_hand) for one in plan_parts(request))  # tasks × algorithms
    if not DESIGNS[request.design].two_stages:
        return cells * request.draws * request.trials
    return cells * (request.draws + (request.trials - 1) * len(request.selections))


def done_count(asked: Benchmark, out: str | Path, precision: Precision | None = None, device: str | None = None) -> int:
    """How many of a benchmark's jobs are done in a folder, in an arithmetic or in a device's own."""
    store = LocalStore(Path(out))
    ended = outcomes(store) if Path(out).exists() else {}
    if not ended:
        return 0
    precision = precision or default_precision(find_runtimes(device)[0])
    requests = [request_of(part, precision) for part in _sweep_parts(asked)]
    ids = {job.id for request in requests for job in (*plan(request), *second_stage(request, store))}
    return len(ids & ended.keys())


def results(
    whole: Benchmark, asked: Benchmark, out: str | Path, precision: Precision | None = None
) -> tuple[list[Grid], tuple[str, ...]]:
    """Our tables beside the paper's, from the records of a folder, and a leaderboard for each selection.

    Args:
        whole: The benchmark as its file has it.
        asked: The part that was asked for.
        out: The folder.
        precision: The arithmetic of the jobs; any, if it is not said.

    Returns:
        These, and the names of the parts that have no table.
    """
    precisions = get_args(Precision) if precision is None else (precision,)
    rules = list(dict.fromkeys(name for part in _sweep_parts(asked) for name in part.selections))
    sizes = {(part.search.draws, part.search.trials) for part in _sweep_parts(asked)}
    found = {(draws, trials): read_tables(out, rules, draws=draws, trials=trials) for draws, trials in sorted(sizes)}
    original = {part.name: part for part in _sweep_parts(whole)}
    grids: list[Grid] = []
    shown: list[tuple[SweepPart, Table]] = []
    for part in _sweep_parts(asked):
        settings = _tested(part, precisions)
        for table in found[part.search.draws, part.search.trials]:
            setting = table.about["setting"]
            if setting in settings and table.selection.name in part.selections:
                own, paper = _only(table, part, settings[setting]).whole_trials(), original[part.name]
                grids.append(compare(whole, paper, own) if paper.published else own.grid())
                shown.append((paper, own))
    cited = list(dict.fromkeys(name for part, _ in shown if part.published for name in part.published.tables))
    tables = [table for _, table in shown]
    boards = leaderboards(tables)
    grids += [ranks_beside(whole, board, shown) for board in boards]
    # A score is over all datasets, each under the selection that the paper has for it.
    once = 1 < len({table.dataset for table in tables}) == len(tables)
    for board in [Leaderboard.of(tables, "All datasets")] if once else boards:
        scores = scores_beside(board, cited, out)
        grids += [scores] if scores else []
    names = {part.name for part, _ in shown}
    return grids, tuple(part.name for part in asked.parts if part.name not in names)


def _tested(part: SweepPart, precisions: Sequence[Precision]) -> dict[str, list[Tested]]:
    """Per setting of a part, the domains that its tasks test."""
    found: dict[str, dict[Tested, None]] = defaultdict(dict)
    for one in precisions:
        for job in plan(request_of(part, one)):
            found[job.setting][tuple(job.task.test_domains)] = None
    return {setting: list(tested) for setting, tested in found.items()}


def _only(table: Table, part: SweepPart, tested: Sequence[Tested]) -> Table:
    """A table with the rows of a part and the domains that it tests, no more and no fewer.

    Parts that differ in their algorithms alone share one table, and a folder may have jobs that test other domains:
    what the paper averages over is what the part tests.
    """
    own = {
        name: {some: trials for some, trials in cells.items() if some in tested}
        for name, cells in table.chosen.items()
        if _belongs(table, name, part)
    }
    asked = _asked(table, part)
    return replace(
        table,
        columns=tuple(
            column for some in tested for column in reported_columns({**table.about, "test_domains": list(some)})
        ),
        chosen=own,
        names={name: table.names[name] for name in own},
        sizes={name: counts for name, counts in table.sizes.items() if name in own},
        missing=tuple(job for job in table.missing if (job.algorithm, job.by_hand) in asked and job.tested in tested),
        needed=tuple(
            job
            for job in table.needed
            if (job.algorithm, job.by_hand) in asked and any(set(some) <= set(job.tested) for some in tested)
        ),
    )


def _asked(table: Table, part: SweepPart) -> set[tuple[str, str]]:
    """A part's algorithms, each with what the part sets by hand of its own, as a missing job names it."""
    found = set()
    for name, by_hand in (pair for one in plan_parts(request_of(part)) for pair in one.by_hand.items()):
        own = {key: value for key, value in by_hand.items() if key not in table.about["overrides"]}
        found.add((name, canonical(own).decode() if own else ""))
    return found


def _belongs(table: Table, row: str, part: SweepPart) -> bool:
    """Whether a row is of one of the part's algorithms, with the hyperparameters that the part sets by hand."""
    abouts = [one.about for trials in table.chosen[row].values() for one in trials.values()]
    by_hand = [{**about["overrides"], **about["own_overrides"]} for about in abouts]
    wanted = [{name: v for name, v in part.overrides.items() if name in about["hparams"]} for about in abouts]
    return table.names[row] in part.algorithms and by_hand == wanted


def _measured(
    whole: Benchmark, part: Part, out: Path, measure: bool, on_number: Callable[[str, int, int], None]
) -> Grid:
    """What the room of another kind of benchmark measured, beside the paper's numbers.

    The room's `run(part, out)` gives a mapping for each number: `labels` as the published cell has them,
    `mean`, `spread` or None, and `n`; and `differs`, per name what makes it another experiment than the paper's.
    """
    try:
        run: Callable[..., Iterable[dict[str, Any]]] = importlib.import_module(ROOMS[whole.kind]).run
    except (ModuleNotFoundError, AttributeError) as error:
        raise ShiftbedError(
            f"Benchmark {whole.name} is planned, but this version cannot run benchmarks of {whole.kind} yet."
        ) from error
    total = len(part.options()) * len(part.measures) if isinstance(part, ShiftPart) else job_count(part)
    shown: list[Number] = []
    differs: dict[str, dict[str, str]] = {}
    # Classifiers look at all images before the first number is known: that is shown too.
    more: dict[str, Any] = {"on_progress": on_number} if isinstance(part, AccuracyPart) else {}
    if isinstance(part, ShiftPart) and not measure:
        more["measure"] = False
    source = {"source": part.published.differs} if part.published and part.published.differs else {}
    for one in run(part, out, **more):
        labels = dict(one["labels"])
        row = (
            ", ".join(labels[name] for name in ("algorithm", "network", "setting") if labels.get(name)) or part.dataset
        )
        column = labels.get("domain") or labels.get("measure", "")
        estimate = Estimate(one["mean"], one.get("spread"), one.get("n", 1), one.get("spread"))
        shown.append(Number(row, column, labels, estimate, labels.get("algorithm", "")))
        differs[row] = differs.get(row, {}) | dict(one.get("differs", {})) | source
        on_number(part.name, min(len(shown), total), total)
    title = f"{whole.name}, {part.name}: {part.dataset}"
    caption = f"ours (n = {usual_n(shown)}) and the paper's; ± is the standard error that the measure gives"
    return beside(whole, part, title, caption, shown, differs, decimals=2)
