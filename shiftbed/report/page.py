"""The page: one HTML file with all that is known of a sweep, which opens from disk and asks no network for anything."""

import base64
import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from shiftbed import __version__
from shiftbed.audit.findings import MEANING, Audit, Finding
from shiftbed.audit.ledger import asked, note
from shiftbed.audit.subject import Subject
from shiftbed.audit.verbs import WITH_TEST, WITHOUT_TEST
from shiftbed.errors import ShiftbedError, StoreError
from shiftbed.report import folder as kept
from shiftbed.report import page_charts as charts
from shiftbed.report import page_results, page_words
from shiftbed.report.page_data import dataset_entry
from shiftbed.report.page_results import Results
from shiftbed.sweeps.records import mean_seconds, sweep_status
from shiftbed.tables import as_csv
from shiftbed.training.run import JobFiles, parse_times
from shiftbed.training.store import LocalStore, Store

NAME = "report.html"
Progress = Callable[[str, int, int], None]


def write_page(
    folder: str | Path,
    out: str | Path | None = None,
    *,
    selections: Sequence[str] = (),
    on_progress: Progress = lambda part, done, total: None,
) -> Path:
    """Writes the page of a sweep; sections appear as their data exist.

    Args:
        folder: The sweep's folder; what lies in its `shift` and `accuracy` is shown too.
        out: The file; by default `report.html` in the folder.
        selections: Names of selection rules to switch between; by default the usual ones that choose something.
        on_progress: Called with what is being done, how much is done, and how much there is.

    Returns:
        The file.

    Raises:
        StoreError: No job is finished there, or the file cannot be written.
    """
    folder = Path(folder)
    path = Path(out) if out is not None else folder / NAME
    text = page(folder, selections, on_progress)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.unfinished")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise StoreError(f"Cannot write {path}: {error.strerror}; choose another file with --out.") from error
    return path


def page(folder: Path, selections: Sequence[str] = (), on_progress: Progress = lambda *_: None) -> str:
    """The page as text: equal folders make equal pages."""
    subject = Subject.read(folder)
    store = LocalStore(folder)
    results = Results.of(subject, selections)
    _note_looks(store, results)
    audit = _audit(subject, on_progress)
    status = sweep_status(store)
    verdicts = [page_words.verdict(table) for table in results.usual]
    points, predictions = kept.shift_points(folder), kept.predictions(folder)
    looks = charts.look(results.algorithms)
    numbers = page_results.numbers(results)
    cost = costs(subject, store)
    measured_shift = _shift(folder, subject, points, verdicts)
    drawn = {**measured_shift.pop("charts"), **_curves(results, looks)}
    if predictions:
        drawn["predictions"] = charts.prediction_chart(predictions, looks)
    data = {
        "charts": drawn,
        "draws": [page_results.draws(subject, table) for table in results.usual],
        "looks": looks,
        "numbers": page_results.provenance(numbers),
        "csv": as_csv([table for group in zip(*results.tables.values(), strict=True) for table in group]),
    }
    abouts = {about["dataset"]: about for about in subject.abouts}
    datasets = []
    for place, name in enumerate(subject.datasets):
        on_progress("looking at datasets", place, len(subject.datasets))
        datasets.append(dataset_entry(name, abouts[name]))
    return render(
        title=folder.resolve().name,
        folder=str(folder),
        headline=page_words.headline(verdicts),
        compared=page_words.compared(subject, results),
        verdicts=verdicts,
        steps=page_words.next_steps(folder, verdicts, status, audit, list(points), bool(predictions)),
        datasets=datasets,
        shift=measured_shift,
        selections=page_results.by_selection(results),
        draws=data["draws"],
        audit=audit,
        meaning=MEANING,
        predictions=predictions,
        study=_study(folder),
        cost=cost,
        status=status,
        diverged=diverged(subject),
        versions=page_words.versions(subject, cost["attempts"]),
        numbers=len(numbers),
        citations=page_words.citations(subject, bool(points)),
        data=_finite(data),
    )


def _finite(value: Any) -> Any:
    """Data that JSON can hold: what is not a finite number is nothing."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def render(**content: Any) -> str:
    """Fills the template. Every name is text there; scripts run only if their hash is in the page's policy."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=PackageLoader("shiftbed.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False, "allow_nan": False}
    environment.filters |= {"ticked": _ticked, "signed": lambda number: f"{number:+.1f}".replace("-", "−")}
    scripts = {"plotly": get_plotlyjs(), "own": _source("page.js")}
    return environment.get_template("page.html").render(
        scripts=scripts,
        hashes=[_hash(text) for text in scripts.values()],
        style=_source("page.css"),
        version=__version__,
        **content,
    )


def _ticked(text: str) -> Markup:
    """A sentence whose words between backticks are set as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else part for place, part in enumerate(parts)
    )


def _source(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """A script's hash, as a content security policy has it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _note_looks(store: Store, results: Results) -> None:
    """Writes down what oracle selections looked at, as every verb that shows their numbers does."""
    for rule in results.selections:
        if rule.oracle:
            cells = [cell for table in results.tables[rule.name] for cell in table.chosen.values()]
            tasks = {id(one.task): one.task for cell in cells for trials in cell.values() for one in trials.values()}
            note(store, (query for task in tasks.values() for query in asked(rule, task)))


def _audit(subject: Subject, on_progress: Progress) -> Audit:
    """The audit from the same records; a check that cannot be made here says why."""
    findings = []
    checks = (*WITHOUT_TEST, *WITH_TEST)
    for number, check in enumerate(checks):
        on_progress("auditing", number, len(checks))
        try:
            findings.append(check(subject))
        except ShiftbedError as reason:
            findings.append(Finding(check.__name__.replace("_", " "), "unknown", str(reason)))
    return Audit(subject.folder, len(subject.abouts), findings)


def _curves(results: Results, looks: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Per setting a chart of accuracy over training, with one variant for each selection."""
    found: dict[str, Any] = {}
    for rule, tables in results.tables.items():
        for place, table in enumerate(tables):
            lines = page_results.curves(table)
            if lines:
                found.setdefault(f"curves-{place}", {})[rule] = charts.curve_chart(lines, looks)
    return found


def _shift(folder: Path, subject: Subject, points: Any, verdicts: Sequence[page_words.Verdict]) -> dict[str, Any]:
    """The shift plane, matrices of pairs of domains, and what they advise."""
    names = list(dict.fromkeys([*subject.datasets, *points]))
    said = [page_words.advice(name, points.get(name), verdicts) for name in names]
    drawn: dict[str, Any] = {"plane": charts.plane(points)} if points else {}
    matrices = []
    for path in sorted((folder / kept.SHIFT).glob("*.json")):
        read = kept.read_json(path)
        if isinstance(read, dict) and "cells" in read:
            for name, values in pairs(read).items():
                key = f"matrix-{len(matrices)}"
                drawn[key] = charts.heat_map(read["domains"], values, name)
                matrices.append({"key": key, "dataset": path.name.removesuffix(kept.MATRIX), "name": name})
    return {"points": points, "advice": [words for words in said if words], "matrices": matrices, "charts": drawn}


def pairs(matrix: dict[str, Any]) -> dict[str, list[list[float | None]]]:
    """By measure, the values between all domains; the diagonal is 0, and None where nothing was measured."""
    domains = list(matrix["domains"])
    found: dict[str, list[list[float | None]]] = {}
    for cell in matrix["cells"]:
        if cell["first"] in domains and cell["second"] in domains:
            i, j = domains.index(cell["first"]), domains.index(cell["second"])
            for one in cell["estimates"]:
                empty = [[0.0 if a == b else None for b in domains] for a in domains]
                values = found.setdefault(one["name"], empty)  # type: ignore[arg-type]
                values[i][j] = values[j][i] = one["value"]
    return found


def _study(folder: Path) -> dict[str, Any] | None:
    """The errors of accuracy prediction, from `shiftbed accuracy`, if it ran."""
    path = folder / kept.ACCURACY / "study.json"
    return kept.read_json(path) if path.exists() else None


def costs(subject: Subject, store: Store) -> dict[str, Any]:
    """Device-hours behind each algorithm's result on each dataset: mean seconds of a job times jobs."""
    jobs: dict[tuple[str, str], list[str]] = {}
    for about in subject.abouts:
        jobs.setdefault((about["dataset"], about["algorithm"]), []).append(about["id"])
    means = mean_seconds(store, jobs)
    rows = [
        {
            "dataset": kind[0],
            "algorithm": kind[1],
            "jobs": len(jobs[kind]),
            "seconds": seconds,
            "hours": seconds * len(jobs[kind]) / 3600,
        }
        for kind, seconds in sorted(means.items())
    ]
    attempts = [one for ids in jobs.values() for one in parse_times(store.get(JobFiles(ids[0]).times))]
    return {"rows": rows, "hours": sum(row["hours"] for row in rows), "attempts": attempts}


def diverged(subject: Subject) -> list[dict[str, Any]]:
    """The jobs whose loss went wrong."""
    ended = [(status, about) for task in subject.tasks for status, about in zip(task.statuses, task.abouts, strict=True)]
    return [about for status, about in ended if status == "diverged"]


