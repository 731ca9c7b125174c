"""The studies of the CIFAR-10-W paper, for any classifiers and domains: each gives a plain table, rows of named values.

All of them read `Scores`: what every method says of every classifier on every domain. Errors are in points.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from shiftbed.accuracy.fitting import evaluate, mean_errors, rank_correlation
from shiftbed.accuracy.intervals import AccuracyPredictor
from shiftbed.accuracy.methods import METHODS, Method
from shiftbed.accuracy.outputs import Outputs
from shiftbed.accuracy.reference import Reference
from shiftbed.accuracy.scores import POINTS
from shiftbed.accuracy.scores import Scores as Scores
from shiftbed.errors import DataError
from shiftbed.published import table as published_table

Row = dict[str, Any]
Domains = Iterable[Outputs]  # labelled outputs of one classifier, domain after domain
SIZES = (100, 200, 500, 1000, 2000)
RESAMPLES = 2000  # of the bootstrap over groups


def score_classifiers(
    classifiers: Mapping[str, Callable[[], tuple[Outputs, Domains]]],
    groups: Mapping[str, str],
    methods: Sequence[str] = (),
    calibrated: bool = False,
    on_progress: Callable[[str, int, int], None] = lambda part, done, total: None,
) -> Scores:
    """Scores every classifier on every domain by every method it has what is needed for.

    Domains are looked at one at a time: what is kept is one number a method. Methods that are not defined on all
    domains are left out.

    Args:
        classifiers: By name, a function that gives a classifier's outputs on the source, and on each labelled domain.
        groups: The group of each domain, by its name; those without one are their own.
        methods: Names; all that can be computed by default.
        calibrated: Divide every classifier's logits by one temperature, fitted on the source.
        on_progress: Called with what is being done, how much is done, and how much there is.
    """
    rows: list[dict[str, list[float]]] = []
    accuracies: list[list[float]] = []
    names: list[str] = []
    images: list[int] = []
    for place, outputs in enumerate(classifiers.values()):
        on_progress("classifiers", place, len(classifiers))
        source, domains = outputs()
        reference = Reference(source)
        temperature = reference.temperature if calibrated else 1.0
        if calibrated:
            reference = reference.calibrated()
        usable = [METHODS[name] for name in methods or METHODS if not METHODS[name].missing(source)]
        scores: dict[str, list[float]] = {method.name: [] for method in usable}
        names, images, right = [], [], []
        for domain in domains:
            names.append(domain.name)
            images.append(len(domain))
            right.append(domain.accuracy)
            asked = domain.scaled(temperature) if calibrated else domain
            for method in usable:
                scores[method.name].append(_score_or_nan(method, asked, reference))
        rows.append(scores)
        accuracies.append(right)
    on_progress("classifiers", len(classifiers), len(classifiers))
    shared = [name for name in rows[0] if all(name in row and np.isfinite(row[name]).all() for row in rows)]
    return Scores(
        tuple(classifiers),
        tuple(names),
        np.array([groups.get(name, name) for name in names]),
        np.array(images),
        np.array(accuracies),
        {name: np.array([row[name] for row in rows]) for name in shared},
    )


def _score_or_nan(method: Method, domain: Outputs, reference: Reference) -> float:
    """A score; not a number where the method is not defined there, such as a line of agreements of two models."""
    try:
        return method.score(domain, reference)
    except DataError:
        return float("nan")


def of_classes(domain: Outputs, removed: Sequence[int]) -> Outputs:
    """A domain without the images of some classes: score and accuracy then come from the same reduced set."""
    if domain.labels is None:
        raise DataError(f"{domain.name} has no labels, so none of its classes can be removed.")
    return domain.take(np.flatnonzero(~np.isin(domain.labels, removed)))


def of_size(domain: Outputs, count: int) -> Outputs:
    """Some images of a domain, drawn at random but always the same."""
    places = np.random.default_rng(0).permutation(len(domain))[:count]
    return domain.take(np.sort(places))


# --- tables -----------------------------------------------------------------------------------------------------------


def mae_table(scores: Scores, columns: Mapping[str, Sequence[str]] | None = None, by_group: bool = False) -> list[Row]:
    """The paper's table 2: by method, the mean absolute error per classifier, in groups of domains and in all.

    One line a classifier is fitted through all domains; a column is the mean over its domains. The last row is what
    always predicting the mean errs by.

    Args:
        scores: What methods say.
        columns: By name, the groups whose domains make up a column; none by default.
        by_group: Leave out whole groups, which is the honest question where domains of a group are alike.
    """
    where = {name: np.isin(scores.groups, members) for name, members in (columns or {}).items()}
    where["all"] = np.ones(len(scores.domains), bool)
    rows = [_row(name, scores.errors(name, by_group), scores.classifiers, where) for name in scores.values]
    groups = scores.groups if by_group else None
    mean = POINTS * np.stack([mean_errors(accuracies, groups) for accuracies in scores.accuracies])
    return [*rows, _row("mean of the others", mean, scores.classifiers, where)]


def _row(method: str, errors: np.ndarray, classifiers: Sequence[str], where: Mapping[str, np.ndarray]) -> Row:
    sizes = np.abs(errors)
    each = {name: float(sizes[place].mean()) for place, name in enumerate(classifiers)}
    return {"method": method, **each, **{name: float(sizes[:, some].mean()) for name, some in where.items()}}


def cell_table(scores: Scores) -> list[Row]:
    """The mean absolute error of every method for every classifier in every group of domains, and in all."""
    where = {name: scores.groups == name for name in dict.fromkeys(scores.groups.tolist())}
    where["all"] = np.ones(len(scores.domains), bool)
    return [
        {"method": name, "classifier": classifier, **{group: float(row[some].mean()) for group, some in where.items()}}
        for name in scores.values
        for classifier, row in zip(scores.classifiers, np.abs(scores.errors(name, by_group=False)), strict=True)
    ]


def beside_paper(table: Sequence[Row]) -> list[Row]:
    """A table of errors with the paper's on CIFAR-10-Cs beside it, mean over its 40 classifiers and its range."""
    labels = {name: METHODS[name].label for name in METHODS}
    cells = [cell for cell in published_table("cifar-10-w/table-2").cells if cell.dataset == "CIFAR-10-Cs"]
    rows = []
    for row in table:
        printed = {cell.network: cell.mean for cell in cells if cell.algorithm == labels.get(row["method"])}
        single = [mean for network, mean in printed.items() if network and mean is not None]
        rows.append(
            {
                "method": row["method"],
                "ours": row["all"],
                "paper, 40 classifiers": printed.get(""),
                "paper, single ones": f"{min(single):.2f} to {max(single):.2f}" if single else None,
            }
        )
    return rows


def correlation_table(scores: Scores) -> list[Row]:
    """Spearman's and Kendall's rank correlation of each method's score with accuracy, per classifier."""
    return [
        {
            "method": name,
            "classifier": classifier,
            "spearman": rank_correlation(values[place], scores.accuracies[place]),
            "kendall": rank_correlation(values[place], scores.accuracies[place], "kendall"),
        }
        for name, values in scores.values.items()
        for place, classifier in enumerate(scores.classifiers)
    ]


def points_table(scores: Scores, method: str, by_group: bool = False) -> list[Row]:
    """Every classifier on every domain: score, accuracy, predicted accuracy and error (its figures 2, 7 and 9)."""
    errors = scores.errors(method, by_group) / POINTS
    return [
        {
            "classifier": classifier,
            "domain": domain,
            "group": str(scores.groups[column]),
            "score": float(scores.values[method][row, column]),
            "accuracy": float(scores.accuracies[row, column]),
            "predicted": float(scores.accuracies[row, column] - errors[row, column]),
            "error": float(POINTS * abs(errors[row, column])),
        }
        for row, classifier in enumerate(scores.classifiers)
        for column, domain in enumerate(scores.domains)
    ]


def spread_table(scores: Scores, by_group: bool = False) -> list[Row]:
    """By method, the mean, deviation and range over classifiers of the mean absolute error (its figure 3 A)."""
    rows = []
    for name in scores.values:
        each = np.abs(scores.errors(name, by_group)).mean(axis=1)
        spread = float(each.std(ddof=1)) if len(each) > 1 else float("nan")
        rows.append({"method": name, "mae": float(each.mean()), "deviation": spread, "range": float(np.ptp(each))})
    return rows


def difficulty_table(scores: Scores, by_group: bool = False) -> list[Row]:
    """By classifier, mean and deviation over methods of the mean absolute error, the hardest first (figure 4 B)."""
    each = np.stack([np.abs(scores.errors(name, by_group)).mean(axis=1) for name in scores.values])
    rows = [
        {"classifier": name, "mae": float(each[:, place].mean()), "deviation": float(each[:, place].std(ddof=1))}
        for place, name in enumerate(scores.classifiers)
    ]
    return sorted(rows, key=lambda row: -row["mae"])


def change_table(before: Scores, after: Mapping[str, Scores], by_group: bool = False) -> list[Row]:
    """By method, how the mean absolute error changes from one `Scores` to others (figures 3 B, 3 C and 4 A).

    For removed classes, smaller sets, another training set, another image size or models trained otherwise.
    """
    rows = []
    for name in before.values:
        first = float(np.abs(before.errors(name, by_group)).mean())
        changed = {
            what: float(np.abs(scores.errors(name, by_group)).mean()) - first
            for what, scores in after.items()
            if name in scores.values
        }
        rows.append({"method": name, "mae": first, **changed})
    return rows


def rank_agreement(one: Sequence[Row], other: Sequence[Row], column: str = "all") -> float:
    """Kendall's τ between the rankings of methods in two tables of errors: two testbeds, or two groups."""
    there = {row["method"]: row[column] for row in other}
    both = np.array([(row[column], there[row["method"]]) for row in one if row["method"] in there])
    return rank_correlation(both[:, 0], both[:, 1], "kendall")


def group_agreement(scores: Scores, groups: Sequence[str] | None = None) -> list[Row]:
    """Kendall's τ between the rankings of methods in every two groups of domains."""
    names = list(groups or dict.fromkeys(scores.groups.tolist()))
    errors = {name: np.abs(scores.errors(name, False)).mean(axis=0) for name in scores.values}
    means = {group: np.array([e[scores.groups == group].mean() for e in errors.values()]) for group in names}
    return [
        {"one": one, "other": other, "kendall": rank_correlation(means[one], means[other], "kendall")}
        for one, other in combinations(names, 2)
    ]


def size_table(scores: Scores) -> list[Row]:
    """By group, how many images it has and the mean absolute error of all methods there."""
    errors = np.mean([np.abs(scores.errors(name, False)).mean(axis=0) for name in scores.values], axis=0)
    members = {name: scores.groups == name for name in dict.fromkeys(scores.groups.tolist())}
    return [
        {"group": name, "images": int(scores.images[mine].sum()), "mae": float(errors[mine].mean())}
        for name, mine in members.items()
    ]


def size_effect(scores: Scores) -> float:
    """Kendall's τ between the number of images of a group and the mean error of all methods there."""
    images, errors = (np.array([row[key] for row in size_table(scores)]) for key in ("images", "mae"))
    return rank_correlation(images, errors, "kendall")


def beside_table(scores: Scores, others: Mapping[str, Scores]) -> list[Row]:
    """How other studies rank the methods that this one ranks too: other testbeds, training sets, image sizes, models.

    By study the mean absolute error of these methods, groups left out, how much more it is than here, and Kendall's τ
    of the rankings.
    """
    here = mae_table(scores, by_group=True)[:-1]
    rows = []
    for name, other in others.items():
        there = {row["method"]: row for row in mae_table(other, by_group=True)[:-1]}
        shared = [row for row in here if row["method"] in there]
        if len(shared) < 2:
            raise DataError(f"The study {name} shares {len(shared)} methods with this one; two are needed to compare.")
        mean = float(np.mean([there[row["method"]]["all"] for row in shared]))
        more = mean - float(np.mean([row["all"] for row in shared]))
        tau = rank_agreement(shared, list(there.values()))
        rows.append({"study": name, "methods": len(shared), "mae": mean, "more than here": more, "kendall": tau})
    return rows


# --- coverage ---------------------------------------------------------------------------------------------------------


def coverage_table(scores: Scores, methods: Sequence[str] = ()) -> list[Row]:
    """How often intervals hold on groups that neither the line nor the interval has seen.

    It is judged on the images that were fitted on where domains are corruptions of one source: intervals there have no
    chance of other images in them.

    Each group is left out in turn; predictor and interval are fitted on the others; its domains are predicted. The
    interval of the coverage comes from a bootstrap over groups, since domains of a group are alike.

    Args:
        scores: What methods say.
        methods: Names; all by default.
    """
    names = list(dict.fromkeys(scores.groups.tolist()))
    rows = []
    for method in methods or list(scores.values):
        hits = np.empty(scores.accuracies.shape, bool)
        widths = np.empty(scores.accuracies.shape)
        for row, (values, accuracies) in enumerate(zip(scores.values[method], scores.accuracies, strict=True)):
            for name in names:
                out = scores.groups == name
                fitted = AccuracyPredictor.fit(values[~out], accuracies[~out], scores.groups[~out], scores.images[~out])
                for place in np.flatnonzero(out):
                    _, low, high = fitted.predict(float(values[place]), int(scores.images[place]))
                    hits[row, place] = low <= accuracies[place] <= high
                    widths[row, place] = POINTS * (high - low)
        sums = np.array([[hits[:, scores.groups == name].sum(), hits[:, scores.groups == name].size] for name in names])
        drawn = sums[np.random.default_rng(0).integers(0, len(names), (RESAMPLES, len(names)))].sum(axis=1)
        low, high = np.quantile(drawn[:, 0] / drawn[:, 1], [0.025, 0.975])
        if low == high:  # of groups that are all alike, as many as three may still be otherwise
            low, high = max(0.0, low - 3 / len(names)), min(1.0, high + 3 / len(names))
        rows.append(
            {
                "method": method,
                "coverage": float(hits.mean()),
                "low": float(low),
                "high": float(high),
                "predictions": int(hits.size),
                "median width": float(np.median(widths)),
            }
        )
    return rows


def direct_table(scores: Scores) -> list[Row]:
    """The mean absolute error of methods that estimate accuracy themselves, with no line fitted, and their bias."""
    rows = []
    for name, values in scores.values.items():
        if METHODS[name].direct:
            wrong = POINTS * (values - scores.accuracies)
            rows.append({"method": name, "mae": float(np.abs(wrong).mean()), "bias": float(wrong.mean())})
    return rows


def fit_summary(scores: Scores, method: str, by_group: bool = False) -> Row:
    """Mean absolute error, correlations and the mean's error of one method, averaged over classifiers."""
    groups = scores.groups if by_group else None
    pairs = zip(scores.values[method], scores.accuracies, strict=True)
    found = [evaluate(values, accuracies, groups) for values, accuracies in pairs]
    points = {name: POINTS * float(np.mean([getattr(one, name) for one in found])) for name in ("mae", "baseline")}
    ranks = {name: float(np.mean([getattr(one, name) for one in found])) for name in ("spearman", "kendall")}
    return {"method": method, **points, **ranks}
