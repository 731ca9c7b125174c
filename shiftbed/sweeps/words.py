"""A sweep in words: what flags and YAML plans say, checked once for both; and one of its jobs as a command."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from shiftbed.data import card
from shiftbed.errors import HparamError, ShiftbedError, what_is_wrong
from shiftbed.hparams import Value
from shiftbed.protocols import LeaveOut
from shiftbed.registry import did_you_mean, whole_names
from shiftbed.sweeps.designs import DESIGNS, REDRAW
from shiftbed.sweeps.plan import Request
from shiftbed.training.device import Precision
from shiftbed.training.job import Job, make_job
from shiftbed.training.recipes import recipe, recipe_names
from shiftbed.training.run import Keep
from shiftbed.yaml_files import read_yaml


def _names(given: Any) -> list[str]:
    """Names from a list, from one name, or from text with commas; numbers are names too (domains of RotatedDigits)."""
    many = given if isinstance(given, (list, tuple)) else [given]
    return [name.strip() for one in many for name in str(one).split(",") if name.strip()]


def _values(given: Any) -> dict[str, Any]:
    """Hyperparameters from a table, or from `name=value` with commas between."""
    if isinstance(given, Mapping):
        return {str(name): _value(value) for name, value in given.items()}
    many = given if isinstance(given, (list, tuple)) else [given]
    found = {}
    for pair in (pair for one in many for pair in str(one).split(",")):
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"hyperparameters are name=value, not '{pair}'")
        found[name.strip()] = _value(text)
    return found


def _value(given: Any) -> Any:
    """A number, true or false where text is one: YAML takes 1e-4 for a word."""
    try:
        return json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return given


def parse_jobs_per_device(given: Any) -> int | None:
    """How many jobs share a GPU; None, which the word auto stands for, is as many as the first leave room for.

    Raises:
        HparamError: It is neither.
    """
    if given is None or given == "auto":
        return None
    if not str(given).isdecimal() or int(given) < 1:
        raise HparamError(f"Jobs per device are a number from 1 on, or auto, not '{given}'.")
    return int(given)


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
Values = Annotated[dict[str, Value], BeforeValidator(_values)]


class SweepWords(BaseModel):
    """What a sweep can be told; the command line's flags have the same names.

    Attributes:
        draws: By default the design's own number, but one of `redraw`.
        trials: Likewise.
        set: Hyperparameters set by hand.
        group: The settings of the design `groups`.
        budget: The largest number of draws, up to `draws`, that takes no longer than this.
        only: The ids of jobs; the others are left.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    datasets: Names = Field(min_length=1)
    algorithms: Names = Field(min_length=1)
    out: Path
    design: str = REDRAW
    draws: int | None = Field(default=None, ge=1)
    trials: int | None = Field(default=None, ge=1)
    test: Names = ()
    protocol: str = "leave-one-domain-out"
    selection: Names = ()
    records: Literal["full", "lean"] = "full"
    recipe: str = "quick"
    steps: int | None = Field(default=None, ge=1)
    set: Values = {}
    group: tuple[Values, ...] = ()
    adapt: float = 0.0
    budget: str | None = None
    device: str | None = None
    precision: Precision | None = None
    deterministic: bool = False
    on: Literal["local", "ray", "slurm"] = "local"
    address: str | None = None
    code: tuple[Path, ...] = ()
    workers: int | None = Field(default=None, ge=1)
    keep: Keep = "none"
    blind: bool = False
    jobs_per_device: Annotated[int | None, BeforeValidator(parse_jobs_per_device)] = None
    only: Names = ()

    @model_validator(mode="after")
    def _refuse_vain_words(self) -> "SweepWords":
        """An address that nothing asks is a forgotten `on`."""
        if self.address and self.on != "ray":
            raise HparamError("--address is a Ray cluster's; say --on ray too, or leave --address out.")
        return self

    def request(self) -> Request:
        """The words as a request."""
        design = DESIGNS[self.design]
        # Of redraw one draw and trial are a first look; the others make no sense without their numbers. Where a budget
        # decides, there may be as many draws as the design's authors take.
        one = design.name == REDRAW
        draws = len(self.group) or (1 if one and not self.budget else design.draws)
        return Request(
            datasets=self.datasets,
            algorithms=self.algorithms,
            draws=self.draws or draws,
            trials=self.trials or (1 if one else design.trials),
            test_domains=whole_names(self.test, [name for one in self.datasets for name in card(one).domains]),
            protocol=self.protocol,
            recipe=self.recipe,
            design=design.name,
            groups=self.group,
            fields={"steps": self.steps},
            overrides=self.set,
            adapt=self.adapt,
            selections=self.selection,
            lean=self.records == "lean",
        )


def sweep_words(given: Mapping[str, Any], plan: Path | None = None) -> SweepWords:
    """The words of a sweep: those of a YAML plan, and on top of them those given as flags.

    Raises:
        HparamError: A word is unknown, missing, or has an impossible value.
    """
    words = {**(_read(plan) if plan else {}), **given}
    try:
        return SweepWords(**words)
    except ValidationError as error:
        # An unknown word first: it is often the missing one, misspelt.
        first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        word = str(first["loc"][0])
        where = f"The plan {plan}" if plan and word not in given else "The sweep"
        if first["type"] == "extra_forbidden":
            raise HparamError(f"{where} has no '{word}'.{did_you_mean(word, list(SweepWords.model_fields))}") from None
        raise HparamError(f"{where} {what_is_wrong({**first, 'loc': (word,)})}.") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        words = read_yaml(path, f"The plan {path}")
    except ShiftbedError as error:
        raise HparamError(str(error)) from error
    if not isinstance(words, dict):
        raise HparamError(f"The plan {path} is not a table of words such as `datasets: [PACS]`.")
    return {"on" if word is True else str(word): value for word, value in words.items()}  # YAML takes `on` for true


def command_alone(job: Job, words: SweepWords, draws: int) -> str:
    """The command that runs one job of a sweep alone.

    Args:
        job: The job.
        words: The sweep's.
        draws: How many draws it has, which a budget may have set.
    """
    if not words.blind:  # it would show the test
        alone = train_command(job, words.out, words.code, words.keep, words.deterministic)
        if alone:
            return alone
    one_by_one = {"set", "group", "code"}
    said = words.model_dump(mode="json", exclude_defaults=True, exclude={"datasets", "budget", *one_by_one})
    said |= {"draws": draws, "precision": job.recipe.precision, "only": job.id}
    flags = [(name, ",".join(value) if isinstance(value, list) else value) for name, value in said.items()]
    flags += [("set", f"{name}={json.dumps(value)}") for name, value in words.set.items()]
    flags += [("group", ",".join(f"{name}={json.dumps(value)}" for name, value in one.items())) for one in words.group]
    flags += [("code", path) for path in words.code]
    options = [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in flags]
    return shlex.join(["shiftbed", "sweep", ",".join(words.datasets), *options])


def train_command(
    job: Job, out: Path, code: Sequence[Path] = (), keep: Keep = "none", deterministic: bool = False
) -> str | None:
    """The command that runs one job of a sweep alone, or None where `shiftbed train` has no words for it."""
    if not isinstance(job.spec, LeaveOut) or job.recipe.name not in recipe_names():  # a file, whose path it knows not
        return None
    how = recipe(job.recipe.name, job.dataset, steps=job.recipe.steps, precision=job.recipe.precision)
    spec = LeaveOut(job.spec.test, adapt=job.spec.adapt)
    if make_job(job.dataset, job.algorithm, spec, how, job.draw, job.trial, job.overrides).id != job.id:
        return None
    words = ["shiftbed", "train", job.dataset, job.algorithm, f"--test={','.join(job.spec.test)}"]
    words += [f"--draw={job.draw}", f"--trial={job.trial}", f"--recipe={job.recipe.name}", f"--steps={how.steps}"]
    words += [f"--precision={how.precision}", f"--keep={keep}"]
    words += [f"--adapt={job.spec.adapt:g}"] if job.spec.adapt else []
    words += ["--deterministic"] if deterministic else []
    words += [f"--set={name}={json.dumps(value)}" for name, value in job.overrides.items()]
    words += [f"--code={path}" for path in code]
    return shlex.join([*words, f"--out={out}"])
