"""The page: one HTML file with all that is known of a sweep, which opens from disk and asks no network for anything."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shiftbed.accuracy.kept import ACCURACY, predictions
from shiftbed.accuracy.records import recorded
from shiftbed.audit.findings import MEANING
from shiftbed.audit.subject import Subject
from shiftbed.registry import listed
from shiftbed.report import page_charts as charts
from shiftbed.report import page_results, page_words
from shiftbed.report.page_data import dataset_entry
from shiftbed.report.page_html import render
from shiftbed.report.page_jobs import Progress, audited, costs, diverged, note_looks, versions
from shiftbed.report.page_results import Results
from shiftbed.report.page_shift import shift_section
from shiftbed.shift.kept import shift_points
from shiftbed.sweeps.blind import refuse_sealed
from shiftbed.sweeps.records import sweep_status
from shiftbed.tables import as_csv
from shiftbed.training.store import LocalStore, read_json

NAME = "report.html"


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
        StoreError: No job is finished there, the sweep is sealed, or the file cannot be written.
    """
    folder = Path(folder)
    path = Path(out) if out is not None else folder / NAME
    text = page(folder, listed(selections), on_progress)
    LocalStore(path.parent).put_atomic(path.name, text.encode())
    return path


def page(folder: Path, selections: Sequence[str] = (), on_progress: Progress = lambda *_: None) -> str:
    """The page as text: equal folders make equal pages."""
    refuse_sealed(folder)
    on_progress("reading records", 0, 1)
    subject, store = Subject.read(folder), LocalStore(folder)
    results = Results.of(subject, selections)
    note_looks(store, results)
    status = sweep_status(store)
    on_progress("reading records", 1, 1)
    audit = audited(subject, on_progress)
    verdicts = page_words.verdicts(results.usual)
    points, predicted = shift_points(folder), _predicted(folder, results)
    shift, cost = shift_section(folder, subject, points, verdicts), costs(subject, store)
    numbers = page_results.numbers(results)
    data = _data(subject, results, shift["charts"], predicted, numbers)
    return render(
        data,
        title=folder.resolve().name,
        folder=str(folder),
        headline=page_words.headline(verdicts),
        compared=page_words.compared(subject, results),
        verdicts=verdicts,
        steps=page_words.next_steps(folder, verdicts, status, audit, list(points), bool(predictions(folder))),
        datasets=_datasets(subject, on_progress),
        shift=shift,
        selections=page_results.by_selection(results),
        draws=data["draws"],
        audit=audit,
        meaning=MEANING,
        predictions=predicted,
        study=_study(folder),
        cost=cost,
        status=status,
        diverged=diverged(subject),
        versions=versions(subject, cost["attempts"]),
        numbers=len(numbers),
        citations=page_words.citations(subject, bool(points)),
    )


def _data(
    subject: Subject,
    results: Results,
    shift: dict[str, Any],
    predicted: Sequence[dict[str, Any]],
    numbers: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """What the page's scripts draw and list."""
    looks = charts.look(results.algorithms)
    drawn = {**shift, **_curves(results, looks)}
    if predicted:
        drawn["predictions"] = charts.prediction_chart(predicted, looks)
    return {
        "charts": drawn,
        "draws": [page_results.draws(subject, table) for table in results.usual],
        "looks": looks,
        "numbers": page_results.provenance(numbers),
        "csv": as_csv([table for group in zip(*results.tables.values(), strict=True) for table in group]),
    }


def _datasets(subject: Subject, on_progress: Progress) -> list[dict[str, Any]]:
    """The datasets with their contact sheets."""
    abouts = {about["dataset"]: about for about in subject.abouts}
    found = []
    for place, name in enumerate(subject.datasets):
        on_progress("looking at datasets", place, len(subject.datasets))
        found.append(dataset_entry(name, abouts[name]))
    on_progress("looking at datasets", len(found), len(found))
    return found


def _curves(results: Results, looks: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Per setting a chart of accuracy over training, with one variant for each selection."""
    found: dict[str, Any] = {}
    for rule, tables in results.tables.items():
        for place, table in enumerate(tables):
            lines = page_results.curves(table)
            if lines:
                found.setdefault(f"curves-{place}", {})[rule] = charts.curve_chart(lines, looks)
    return found


def _predicted(folder: Path, results: Results) -> list[dict[str, Any]]:
    """Predicted accuracies of all cells: by models that were kept, where `shiftbed predict` ran, else from records."""
    asked = predictions(folder)
    known = {(row["dataset"], row["domain"], row["algorithm"]) for row in asked}
    others = [row for row in recorded(results.usual) if (row["dataset"], row["domain"], row["algorithm"]) not in known]
    return asked + others


def _study(folder: Path) -> list[dict[str, Any]]:
    """The errors of accuracy prediction by method, from `shiftbed accuracy`, if it ran."""
    path = folder / ACCURACY / "study.json"
    return read_json(path).get("mae, groups left out", []) if path.exists() else []
