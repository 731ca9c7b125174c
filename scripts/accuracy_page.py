"""Writes what docs/accuracy.md says of the study on real data, from the tables that scripts/accuracy_study.py made.

python scripts/accuracy_page.py
"""

import json
import re
from pathlib import Path
from statistics import mean, median
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
STUDY = DOCS / "results" / "cifar-10-corrupted" / "accuracy" / "study.json"
PAGE = DOCS / "accuracy.md"
Row = dict[str, Any]


def errors(made: Row) -> list[Row]:
    """Mean absolute errors by method, left out by corruption and alone, beside the paper's."""
    alone, fitted = by_method(made["mae"]), by_method(made["summary"])
    return [
        {
            "method": row["method"],
            "by corruption": row["ours"],
            "alone": alone[row["method"]]["all"],
            "paper, 40 classifiers": row["paper, 40 classifiers"],
            "paper, single ones": row["paper, single ones"],
            "Spearman": fitted.get(row["method"], {}).get("spearman"),
        }
        for row in made["beside the paper"]
    ]


def coverage(made: Row) -> list[Row]:
    """How often intervals hold, and how wide they are."""
    return [
        {
            "method": row["method"],
            "coverage": row["coverage"],
            "95 % interval of it": f"{row['low']:.2f} to {row['high']:.2f}",
            "median width": row["median width"],
        }
        for row in made["coverage"]
    ]


def direct(made: Row) -> list[Row]:
    """Errors of estimates that need no line, as they are and after one temperature."""
    scaled = by_method(made["direct, calibrated"])
    return [
        {
            "method": row["method"],
            "error": row["mae"],
            "bias": row["bias"],
            "error, calibrated": scaled.get(row["method"], {}).get("mae"),
            "bias, calibrated": scaled.get(row["method"], {}).get("bias"),
        }
        for row in made["direct"]
    ]


def changes(made: Row) -> list[Row]:
    """How errors change with smaller sets, and in the mean over which class or two are missing."""
    rows = []
    for row in made["changes"]:
        sizes = {key: value for key, value in row.items() if key.endswith(" images")}
        one = [value for key, value in row.items() if key.startswith("without ") and " and " not in key]
        two = [value for key, value in row.items() if key.startswith("without ") and " and " in key]
        removed = {"without a class": mean(one), "without two": mean(two)}
        rows.append({"method": row["method"], "whole sets": row["mae"], **sizes, **removed})
    return rows


def by_method(rows: list[Row]) -> dict[str, Row]:
    """Rows by their method."""
    return {row["method"]: row for row in rows}


def markdown(rows: list[Row]) -> str:
    """Rows as a table, numbers with two decimals."""

    def text(value: Any) -> str:
        return "–" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)

    head = ["| " + " | ".join(rows[0]) + " |", "| --- |" + " ---: |" * (len(rows[0]) - 1)]
    return "\n".join(head + ["| " + " | ".join(map(text, row.values())) + " |" for row in rows])


def paragraphs(made: Row) -> str:
    """All that the page says of the study."""
    clean = ", ".join(f"{name} {100 * accuracy:.1f}" for name, accuracy in made["classifiers"].items())
    kept = min(made["variance kept"].values())
    hardest, easiest = made["difficulty"][0], made["difficulty"][-1]
    taus = [row["kendall"] for row in made["groups"] if row["kendall"] is not None]
    parts = [
        f"Clean accuracy in %: {clean}.",
        f"Over all sets accuracies span {made['span']:.0f} points. Features are taken in the 64 directions in which "
        f"the source varies most, which have at least {kept:.0%} of the variance.",
        "**Mean absolute errors** in points, beside the paper's on its 188 corrupted sets, each of which it leaves out "
        "alone:",
        markdown(errors(made)),
        "**Intervals** that are meant to hold with 90 %, on corruptions that were left out whole: "
        f"{made['coverage'][0]['predictions']:,} predictions, the interval of their coverage by a bootstrap over "
        "corruptions, widths in points:",
        markdown(coverage(made)),
        "All sets show the same 2,000 images, so that this is coverage on other corruptions of the images that were "
        "fitted on, not on new ones. Intervals here have no chance of other images in them; those of "
        "`shiftbed predict` fitted on corruptions do, and are wider.",
        "**Direct estimates**, with no line: error and bias in points, as they are and after one temperature:",
        markdown(direct(made)),
        f"**Smaller sets and missing classes**: by how many points errors of {next(iter(made['classifiers']))} change, "
        "for missing classes in the mean over which:",
        markdown(changes(made)),
        f"**Classifiers and rankings.** The hardest classifier is {hardest['classifier']} ({hardest['mae']:.2f} points "
        f"in the mean over methods), the easiest {easiest['classifier']} ({easiest['mae']:.2f}). Rankings of the "
        f"methods on two corruptions have a Kendall's τ from {min(taus):.2f} to {max(taus):.2f}, in the median "
        f"{median(taus):.2f}.",
    ]
    return "\n\n".join(parts)


def updated(text: str) -> str:
    """The page with the study as it is now."""
    made = paragraphs(json.loads(STUDY.read_text(encoding="utf-8")))
    pattern = r"(<!-- study -->\n).*?(\n<!-- end -->)"
    return re.sub(pattern, lambda found: f"{found[1]}{made}{found[2]}", text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
