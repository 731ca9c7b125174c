"""From results to a model: the job that a rule chooses, trained again to its step, or anew on all domains."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import numpy as np

from shiftbed.audit.ledger import asked, note
from shiftbed.errors import StoreError
from shiftbed.hashing import canonical
from shiftbed.protocols import LeaveOut, TargetTrained
from shiftbed.registry import did_you_mean, listed, whole_names
from shiftbed.selection import (
    SELECTIONS,
    Choice,
    Companions,
    JobRecords,
    Selection,
    TaskRecords,
    Variant,
    cross_validating,
    tasks_of,
)
from shiftbed.sweeps.blind import OF_BLIND, is_sealed, refuse_sealed
from shiftbed.sweeps.records import finished_jobs, no_finished_job, no_test_domain
from shiftbed.tables.table import ORACLE_MARK, left_out
from shiftbed.training.device import find_runtime, one_thread, torch_defaults
from shiftbed.training.job import Job
from shiftbed.training.model import encode_weights
from shiftbed.training.run import JobFiles, run_job
from shiftbed.training.store import LocalStore
from shiftbed.training.trainer import Trainer


class Best(NamedTuple):
    """The model that was chosen and made.

    Attributes:
        job: Whose it is.
        choice: Why it was chosen.
        weights: The file.
        apart: The largest difference of an accuracy from its record; None where all numbers came out the same.
        rule: The rule that chose it.
        among: The test domains that were asked for; none of them means all.
        named: The algorithm that was asked for, if one was.
        unrecorded: How many lean jobs do not have what the rule reads.
    """

    job: JobRecords
    choice: Choice
    weights: Path
    apart: float | None
    rule: Selection
    among: Sequence[str]
    named: str | None = None
    unrecorded: int = 0

    @property
    def words(self) -> str:
        """Which job was chosen, and why."""
        about, mark = self.job.description, ORACLE_MARK if self.rule.oracle else ""
        who = f"{about['algorithm']}, draw {about['draw']}, trial {about['trial']}, step {self.choice.step}"
        tests = ", ".join(about["test_domains"])
        words = f"{self.rule.name} chose {who}, tested on {tests} (score {self.choice.score:.4f}{mark})."
        words += f" {mark} chosen with the test domain's labels." if mark else ""
        if not self.among:
            best = "the algorithm that scores best over all test domains"
            words += (
                f" Of {f'{self.named}, which was named' if self.named else best}, it is the one with the best score."
            )
        words += f" {left_out(self.unrecorded, 'the rule')}" if self.unrecorded else ""
        if self.apart is not None:
            words += (
                f"\nMade again it is another model than in the sweep (accuracies differ by {100 * self.apart:.1f} "
                "points at most): torch or the device are others, or the sweep ran on GPUs without --deterministic."
            )
        return words

    @property
    def facts(self) -> dict[str, Any]:
        """The same for machines."""
        about = {key: self.job.description[key] for key in ("dataset", "algorithm", "draw", "trial", "test_domains")}
        made = _facts(self.rule, self.choice, self.weights)
        return {"job": self.job.id, **about, **made, "same": self.apart is None, "unrecorded": self.unrecorded}


def best(
    folder: str | Path,
    out: str | Path,
    *,
    selection: str = "training-domain-validation",
    algorithm: str | None = None,
    test: Sequence[str] = (),
    device: str | None = None,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
) -> Best:
    """Trains the job that a selection rule prefers to the step it prefers, and keeps its weights.

    A sweep keeps no weights; jobs repeat themselves to the bit (on GPUs if the sweep was deterministic), so the chosen
    one can be made again.

    Args:
        folder: The sweep's folder.
        out: The folder for the model.
        selection: The rule; its score decides among all jobs that compete.
        algorithm: Only jobs of this algorithm.
        test: Only jobs that test these domains.
        device: Where to train.
        on_step: Called after every update with the step and the number of steps.

    Raises:
        StoreError: No finished job competes; or the rule reads test numbers, and the sweep is sealed.
    """
    candidates = Candidates.of(folder, selection, algorithm, test)
    by_id = candidates.jobs
    choice = candidates.best
    store, files = LocalStore(Path(out)), JobFiles(choice.job_id)
    # Before the training: a folder that cannot be written to is noticed now, and weights never lie there unmarked.
    if is_sealed(LocalStore(Path(folder))):
        store.put_atomic(f"{Path(files.job).parent}/{OF_BLIND}", canonical({"sweep": str(Path(folder).resolve())}))
    store.put_atomic(files.job, canonical(by_id[choice.job_id].description))  # which images it never saw
    trainer = retrained(Job.from_description(by_id[choice.job_id].description), choice.step, device, on_step)
    recorded = by_id[choice.job_id].row(choice.step)
    with one_thread(), torch_defaults():
        made = trainer.evaluate()["splits"]  # first, since an algorithm may decide here with which weights it predicts
    store.put_atomic(files.weights, encode_weights(trainer))
    apart = _apart([(made[name], numbers) for name, numbers in recorded["splits"].items() if name in made])
    job, weights = by_id[choice.job_id], Path(out) / files.weights
    return Best(job, choice, weights, apart, candidates.rule, test, algorithm, candidates.unrecorded)


def _apart(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> float | None:
    """The largest difference between accuracies of the same splits; None where all numbers are the same."""
    if all(one == other for one, other in pairs):
        return None
    return max(abs(one["accuracy"] - other["accuracy"]) for one, other in pairs)


class Everywhere(NamedTuple):
    """A model that learned from all domains.

    Attributes:
        job: How it was trained.
        choice: The step whose weights are kept, by held-out images of all domains.
        weights: The file.
        rule: The rule that chose its hyperparameters.
        tested: The accuracies of models with these hyperparameters on domains that they did not see, by domain, of
            all trials; nothing where the sweep is sealed, or is of models that learned from the domains they test.
        adapt: The share of those domains' images that these models saw without labels.
        unrecorded: How many lean jobs do not have what the rule reads.
    """

    job: Job
    choice: Choice
    weights: Path
    rule: Selection
    tested: dict[str, list[float]]
    adapt: float = 0.0
    unrecorded: int = 0

    @property
    def elsewhere(self) -> dict[str, float]:
        """The mean accuracy on each domain of the models that did not see it."""
        return {name: float(np.mean(values)) for name, values in self.tested.items()}

    @property
    def words(self) -> str:
        """What was trained on all domains, and what to expect of it elsewhere."""
        job, domains = self.job, self.job.task.train_domains
        words = (
            f"{job.algorithm} learned from all {len(domains)} domains ({', '.join(domains)}), with the values of draw "
            f"{job.draw} (trial {job.trial}), which {self.rule.name} scores best in the mean over test domains. Kept "
            f"is step {self.choice.step}, the best on images held out of them ({100 * self.choice.score:.1f} %)."
        )
        words += f" {left_out(self.unrecorded, 'the rule')}" if self.unrecorded else ""
        if not self.elsewhere:
            return words
        models = [100 * np.array(found) for found in self.tested.values()]
        values = np.array([found.mean() for found in models])
        apart = doubt = ""
        if len(values) > 1:  # one more domain differs from the mean as these do, and the mean is in doubt itself
            error = values.std(ddof=1) / len(values) ** 0.5
            # Means over models differ less than the models do, one of which will be used.
            of_models = np.mean([found.var(ddof=1) * (1 - 1 / len(found)) if len(found) > 1 else 0 for found in models])
            apart = f", give or take {(error**2 * (len(values) + 1) + of_models) ** 0.5:.1f}"
            doubt = (
                f" That is the mean over {len(values)} domains, known to ± {error:.1f} (its standard error), and the "
                "standard deviation of one more."
            )
        looked = ", chosen with labels there" if self.rule.oracle else ""
        looked += f", but saw {self.adapt:g} of the images unlabelled, as this one will not" if self.adapt else ""
        of_each = ", ".join(f"{100 * value:.1f} % on {name}" for name, value in self.elsewhere.items())
        counts = {min(map(len, models)), max(map(len, models))}
        of_each += f"; means over {' to '.join(map(str, sorted(counts)))} models" if counts != {1} else ""
        return words + (
            f"\nExpect {values.mean():.1f} % at a new domain{apart}: what models of these values had where they did "
            f"not learn{looked} ({of_each}).{doubt}"
        )

    @property
    def facts(self) -> dict[str, Any]:
        """The same for machines."""
        about = {key: getattr(self.job, key) for key in ("dataset", "algorithm", "draw", "trial")}
        made = {**about, **_facts(self.rule, self.choice, self.weights)}
        made |= {"elsewhere": self.elsewhere, "adaptation": self.adapt, "unrecorded": self.unrecorded}
        return {"job": self.job.id, "train_domains": list(self.job.task.train_domains), **made}


def best_everywhere(
    folder: str | Path,
    out: str | Path,
    *,
    selection: str = "training-domain-validation",
    algorithm: str | None = None,
    device: str | None = None,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
) -> Everywhere:
    """Trains a model on all domains of a sweep, for a domain that is in none of them.

    Its algorithm is the one that `best` takes, its hyperparameters those that the rule scores best in the mean over the
    test domains, and its step the best on held-out images of all domains. Run again after it was interrupted, it goes
    on.

    Args:
        folder: The sweep's folder.
        out: The folder for the model.
        selection: The rule.
        algorithm: Only jobs of this algorithm.
        device: Where to train.
        on_step: Called after every update with the step and the number of steps.

    Raises:
        StoreError: No finished job competes, or no draw was trained for every test domain.
    """
    candidates = Candidates.of(folder, selection, algorithm)
    tried = candidates.same_values()
    pattern = Job.from_description(candidates.jobs[tried[0].job_id].description)
    spec = pattern.spec if isinstance(pattern.spec, LeaveOut) else LeaveOut(())
    job = replace(pattern, spec=LeaveOut((), grouped=spec.grouped), lean=())
    store, steps = LocalStore(Path(out)), job.recipe.steps
    outcome = run_job(
        job, store, keep="best", runtime=find_runtime(device), on_step=lambda step, _: on_step(step, steps)
    )
    own = [one for one in finished_jobs(store) if one.id == job.id]
    choice = SELECTIONS["training-domain-validation"].choose(own)
    if outcome != "done" or choice is None:
        raise StoreError(f"{job.algorithm} diverged when it was trained on all domains; choose another --algorithm.")
    untold = is_sealed(LocalStore(Path(folder))) or isinstance(pattern.spec, TargetTrained)
    tested = {} if untold else candidates.tested(tried)
    in_order = {name: tested[name] for name in job.task.train_domains if name in tested}
    weights, rule = Path(out) / JobFiles(job.id).weights, candidates.rule
    return Everywhere(job, choice, weights, rule, in_order, spec.adapt, candidates.unrecorded)


@dataclass(frozen=True)
class Candidates:
    """The finished jobs of a sweep that compete, and what a rule picks of each of their cells.

    Attributes:
        folder: The sweep's folder.
        rule: The rule.
        jobs: The jobs, by id.
        companions: All tasks of the sweep, for rules that read more than the jobs that compete.
    """

    folder: str | Path
    rule: Selection
    jobs: dict[str, JobRecords]
    companions: Companions

    @classmethod
    def of(
        cls, folder: str | Path, selection: str, algorithm: str | None = None, test: Sequence[str] = ()
    ) -> "Candidates":
        """Those of one algorithm, if it is named, that test some domains at least.

        Jobs that test two domains, each tested alone by others, are there for domain cross-validation: they learned
        from one domain less, and compete, as in tables, with none. Whoever names both domains asks for them. NICO++'s
        references, which learned from the domains that they test, compete where there are no others.

        Raises:
            StoreError: No finished job competes; or the rule reads test numbers, and the sweep is sealed.
        """
        rule = SELECTIONS[selection]
        if rule.reads_test:
            refuse_sealed(folder)
        finished = list(finished_jobs(LocalStore(Path(folder))))
        if not finished:
            raise no_finished_job(folder)
        finished = [job for job in finished if job.description["test_domains"]]  # none of them a model of all domains
        if not finished:
            raise no_test_domain(folder)
        finished = [job for job in finished if job.description["task"]["kind"] != TargetTrained.kind] or finished
        test = whole_names(listed(test), {name for job in finished for name in job.description["test_domains"]})
        beside = cross_validating(finished)
        jobs = [
            job
            for job in finished
            if algorithm in (None, job.description["algorithm"])
            and set(test) <= set(job.description["test_domains"])
            and (len(test) > 1 or job.id not in beside)
        ]
        status = f"shiftbed status {quote(str(folder))}"
        known = sorted({job.description["algorithm"] for job in finished})
        if algorithm is not None and algorithm not in known:
            raise StoreError(f"No finished job in {folder} is of {algorithm}.{did_you_mean(algorithm, known)}")
        if (algorithm is not None or test) and not jobs:
            wanted = ([f"is of {algorithm}"] if algorithm else []) + ([f"tests {' and '.join(test)}"] if test else [])
            raise StoreError(f"No finished job in {folder} {' and '.join(wanted)}; `{status}` shows those there are.")
        companions = Companions(tasks_of(finished, rule.metrics | {"accuracy"}))
        found = cls(folder, rule, {job.id: job for job in jobs}, companions)
        if not found.choices and (lacking := found._lacking()):
            where = f"`shiftbed tables {quote(str(folder))} --selection {selection}` names the jobs that do"
            remedy = where if rule.needs_pairs else "choose by another rule"
            raise StoreError(f"{selection} reads {', '.join(lacking)}, which no job in {folder} recorded; {remedy}.")
        if not found.choices:
            raise StoreError(f"No finished job in {folder} competes under {selection}; `{status}` shows them.")
        return found

    @cached_property
    def choices(self) -> list[Choice]:
        """What the rule picks, for each setting, row of a table, test and trial."""
        return [choice for choice in self._choose(self._cells) if choice is not None]

    @property
    def unrecorded(self) -> int:
        """How many lean jobs do not have what the rule reads: they were for others, and do not compete."""
        return sum(len(self.rule.unrecorded(task, self.companions)) for task in map(self._task, self._cells))

    @property
    def _cells(self) -> list[list[JobRecords]]:
        return [list(group) for _, group in groupby(sorted(self.jobs.values(), key=_cell), _cell)]

    def _task(self, jobs: Sequence[JobRecords]) -> TaskRecords:
        return TaskRecords.of(jobs, self.rule.metrics | {"accuracy"})

    def _choose(self, groups: Iterable[Sequence[JobRecords]]) -> list[Choice | None]:
        """What the rule picks of each group of jobs of one test; an oracle's looks are written into the ledger."""
        tasks = list(map(self._task, groups))
        found = [next(iter(self.rule.choices(task, self.companions).values()), None) for task in tasks]
        if self.rule.oracle:
            looked = (task for task, choice in zip(tasks, found, strict=True) if choice is not None)
            note(LocalStore(Path(self.folder)), (query for task in looked for query in asked(self.rule, task)))
        return found

    def _lacking(self) -> list[str]:
        """The columns that the rule reads and no job with records has: lean jobs have those that they were for."""
        tasks = tasks_of([job for job in self.jobs.values() if job.rows], self.rule.metrics)
        each = [set(self.rule.lacking(task, self.companions)) for task in tasks]
        return sorted(map(str, set.intersection(*each))) if each else []

    @property
    def best(self) -> Choice:
        """The best choice of the algorithm that scores best."""
        return _best_of(self.choices, {one.job_id: _cell(self.jobs[one.job_id]) for one in self.choices})

    def same_values(self) -> list[Choice]:
        """Of the algorithm that scores best, the hyperparameters that score best in the mean over all tests.

        Returns:
            What the rule picks of each job that has them, of all trials that have them for all tests, by trial.
        """
        leader = self.jobs[self.best.job_id]
        own = [job for job in self.jobs.values() if _cell(job)[:2] == _cell(leader)[:2]]
        tests = {_cell(job)[2] for job in own}
        by_values: dict[bytes, dict[int, list[Choice]]] = defaultdict(lambda: defaultdict(list))
        for job, choice in zip(own, self._choose([job] for job in own), strict=True):
            if choice is not None:
                by_values[canonical(job.description["hparams"])][job.description["trial"]].append(choice)
        # All trials together: the luckiest of them is no better choice, and its test accuracies would be too good.
        trials_of_each = [[found[trial] for trial in sorted(found)] for found in by_values.values()]
        complete = [[one for one in trials if len(one) == len(tests)] for trials in trials_of_each]
        whole = [[choice for one in trials for choice in one] for trials in complete if trials]
        if not whole:
            raise StoreError(
                f"No draw of {leader.description['algorithm']} in {self.folder} was trained for every test domain; "
                "run its sweep to the end."
            )
        return max(whole, key=lambda choices: float(np.mean([choice.score for choice in choices])))

    def tested(self, choices: Sequence[Choice]) -> dict[str, list[float]]:
        """The accuracies that are reported of the choices, by test domain."""
        found: dict[str, list[float]] = defaultdict(list)
        for choice in choices:
            job = self.jobs[choice.job_id]
            row = job.row(choice.step)
            for split in job.description["splits"]:
                if split["role"] == "test" and split["part"] != "out":
                    found[split["domain"]].append(row["splits"][split["name"]]["accuracy"])
        return found


def _facts(rule: Selection, choice: Choice, weights: Path) -> dict[str, Any]:
    how = {"selection": rule.name, "oracle": rule.oracle, "step": choice.step, "score": choice.score}
    return {**how, "weights": str(weights)}


def _cell(job: JobRecords) -> tuple[Any, ...]:
    """The setting, the row of a table (in words, which can be sorted), the tests and the trial that a job is of."""
    about = job.description
    return about["setting"], str(Variant.of(about)), tuple(about["test_domains"]), about["trial"]


def _best_of(choices: Sequence[Choice], cells: Mapping[str, tuple[Any, ...]]) -> Choice:
    """The best choice of the algorithm that scores best in the mean over the tasks that all algorithms have.

    Scores of different tasks are of other images, so that one of them alone says little about an algorithm.
    """
    scores: dict[tuple[Any, ...], dict[tuple[Any, ...], float]] = defaultdict(dict)
    for choice in choices:
        setting, variant, *task = cells[choice.job_id]
        scores[setting, variant][tuple(task)] = choice.score
    common = set.intersection(*(set(found) for found in scores.values()))
    means = {who: np.mean([found[task] for task in common or found]) for who, found in scores.items()}
    return max(choices, key=lambda one: (means[cells[one.job_id][:2]], one.score, one.job_id))


def retrained(job: Job, step: int, device: str | None, on_step: Callable[[int, int], None]) -> Trainer:
    """A trainer that has made the first steps of a job again, evaluations included: some algorithms learn from them."""
    with one_thread(), torch_defaults():
        trainer = Trainer(job, find_runtime(device, deterministic=True))
        while trainer.step < step:
            trainer.advance()
            on_step(trainer.step, step)
            if job.recipe.is_due(trainer.step) and trainer.step < step:
                trainer.evaluate()
    return trainer
