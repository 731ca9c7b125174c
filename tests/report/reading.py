"""Reading a page as a browser does: which elements it has, and what text is in its tables."""

import csv
import io
from html.parser import HTMLParser

VOID = {"meta", "img", "input", "br", "link"}


class Reader(HTMLParser):
    """Collects elements, the text of every table cell, and all text that is not a script or a style."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.tables, self.words, self.scripts = [], [], [], []
        self._open = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self.tables.append({"about": dict(attributes), "rows": []})
        if tag == "tr":
            self.tables[-1]["rows"].append([])
        if tag in ("td", "th"):
            self.tables[-1]["rows"][-1].append("")
        if tag == "script":
            self.scripts.append("")

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, text):
        if "script" in self._open:
            self.scripts[-1] += text
        elif "style" not in self._open:
            self.words.append(text)
            if ("td" in self._open or "th" in self._open) and "table" in self._open:
                self.tables[-1]["rows"][-1][-1] += text

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    @property
    def ids(self):
        return {about["id"] for _, about in self.elements if "id" in about}

    def cells(self, kind, rule, dataset):
        """The cells of the one table of a dataset by algorithm and column."""
        (found,) = [table for table in self.all_cells(kind, rule) if table[0] == dataset]
        return found[1]

    def all_cells(self, kind, rule):
        """The dataset and cells of every table of a rule, in the order of the page."""
        found = [t for t in self.tables if t["about"].get("data-table") == kind and t["about"]["data-rule"] == rule]
        return [(table["about"]["data-dataset"], self._cells(table)) for table in found]

    @staticmethod
    def _cells(table):
        heads, *rows = [[text.strip() for text in row] for row in table["rows"]]
        return {(row[0], head): text for row in rows for head, text in zip(heads[1:], row[1:], strict=True)}


def csv_rows(text):
    """The rows of `shiftbed tables --format csv`."""
    return list(csv.DictReader(io.StringIO(text)))


def printed(row):
    """A row of the CSV as a cell shows it, where all cells have the same n."""
    if not row["accuracy"]:
        return "–"
    mark = "†" if row["oracle"] == "True" else ""
    error = f" ±{float(row['standard_error']):.1f}" if row["standard_error"] else ""
    return f"{float(row['accuracy']):.1f}{mark}{error}"
