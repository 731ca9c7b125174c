"""The papers' numbers: all are here, and what they derive follows from its parts, but for the errata."""

import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from scipy import stats

from shiftbed import published
from shiftbed.data import DATASETS
from shiftbed.errors import UnknownNameError
from shiftbed.published import Cell

ERRATA = Path(__file__).parents[1] / "docs" / "errata.md"
CELLS = {
    "domainbed": [44, 216, 283, 81, 162, 108, 108, 108, 108, 162],
    "ood-bench": [101, 100, 30],
    "nico-plus-plus": [21, 238, 36, 240, 210, 36, 126, 27, 105],
    "domainbed-v2": [40, 16, 80, 96, 240, 180, 28, 56, 70, 50, 50, 50, 70, 70, 50, 50, 50, 70, 70, 70, 70],
    "cifar-10-w": [836, 540, 418, 300, 195],
}
UNREADABLE = {"cifar-10-w/table-2": 77, "cifar-10-w/table-3": 2, "cifar-10-w/table-6": 117, "cifar-10-w/table-7": 79}
RECONSTRUCTED = {"table-2": 32, "table-3": 1, "table-6": 20, "table-7": 38, "table-8": 1}
DERIVED = {"domainbed": 511, "ood-bench": 89, "nico-plus-plus": 324, "domainbed-v2": 821, "cifar-10-w": 296}
ALGORITHMS = (
    *(
        "ERM",
        "IRM",
        "GroupDRO",
        "Mixup",
        "MLDG",
        "CORAL",
        "MMD",
        "DANN",
        "CDANN",
        "VREx",
        "RSC",
        "SagNet",
        "ARM",
        "MTL",
    ),
    *("ANDMask", "IGA", "ERDG", "SWAD", "Fishr", "EoA", "MixStyle", "MMLD", "AdaClust", "StableNet", "FACT", "JiGen"),
    *("SelfReg", "SD", "EQRM", "VNE", "target-trained", "target-trained-per-domain", ""),
)
IMAGES = {"sand": 16883, "winter": 16289, "outdoor": 19326, "dark": 11419, "autumn": 10506, "dim": 14412}  # of NICO++
IMAGES |= {"rock": 12727, "indoor": 14353}
DIFFUSION = {"DF.h": 13, "DF.c": 12, "DF": 12}
KW = {"Google": 12, "Bing": 12, "Baidu": 12, "360": 12, "Sogou": 12, "Flickr": 15, "Pexels": 20}
KWC = {"Google-CT": 12, "Bing-CT": 12, "Baidu-CT": 12, "360-CT": 12}
GROUPS = {"diffusion": DIFFUSION, "KW": KW, "KWC": KWC, "": {"diffusion": 37, "KW": 95, "KWC": 48}}
EXACT = -0.5  # slack of what is not rounded


class Derived(NamedTuple):
    """A printed number, and what its parts give; as these are rounded, they leave some slack."""

    table: str
    cell: str
    printed: float
    decimals: int
    recomputed: float
    slack: float
    source: str

    @property
    def follows(self) -> bool:
        return abs(self.printed - self.recomputed) <= 0.5 * 10**-self.decimals + self.slack + 1e-9

    @property
    def erratum(self) -> str:
        printed, recomputed = (f"{value:.{self.decimals}f}" for value in (self.printed, self.recomputed))
        return f"| {self.table} | {self.cell} | {printed} | {recomputed} | {self.source} |"


def half(cell: Cell) -> float:
    return 0.5 * 10**-cell.decimals


def name(cell: Cell) -> str:
    labels = [getattr(cell, label) for label in published.LABELS]
    return ", ".join(label for label in labels if label not in ("", "accuracy")) or "all algorithms and datasets"


def derived(cell: Cell, recomputed: float, slack: float, source: str) -> Derived:
    return Derived(cell.table, name(cell), cell.mean, cell.decimals, recomputed, slack, source)


def mean(cell: Cell, parts: Iterable[Cell], source: str, weights: dict[str, int] | None = None) -> Iterator[Derived]:
    """A mean, if it and its parts were read; over the same trials it deviates by no more than its parts on average."""
    parts = list(parts)
    if not parts or any(part.mean is None or part.reconstructed for part in (cell, *parts)):
        return
    shares = [weights[part.domain] / sum(weights.values()) if weights else 1 / len(parts) for part in parts]
    value = sum(share * part.mean for share, part in zip(shares, parts, strict=True))
    yield derived(cell, value, half(parts[0]), source)
    if cell.spread is not None and all(part.spread is not None for part in parts) and parts[0].domain:
        bound = sum(share * part.spread for share, part in zip(shares, parts, strict=True))
        wider = max(cell.spread - bound, 0)
        bounded = derived(cell, cell.spread - wider, half(parts[0]), f"at most the {source} of ±")
        yield bounded._replace(cell=f"{name(cell)}, ±", printed=cell.spread)


def same(cell: Cell, other: Cell) -> Iterator[Derived]:
    """A number that two tables print, perhaps with fewer decimals here."""
    slack = half(other) if other.decimals > cell.decimals else -half(cell)
    if cell.mean is not None and not cell.reconstructed:
        yield derived(cell, other.mean, slack, other.table)
        if cell.spread is not None:
            again = derived(cell, other.spread, slack, other.table)
            yield again._replace(cell=f"{name(cell)}, ±", printed=cell.spread)


def rows(table: str, *without: str) -> Iterable[list[Cell]]:
    """Cells that differ in nothing but these labels."""
    found = defaultdict(list)
    for cell in published.table(table):
        found[tuple(getattr(cell, label) for label in published.LABELS if label not in without)].append(cell)
    return found.values()


def column_means(table: str, label: str, source: str) -> Iterator[Derived]:
    """Cells without a label, as means of those that have it and are else the same."""
    for cells in rows(table, label):
        for cell in cells:
            if not getattr(cell, label) and cell.dataset and cell.measure in ("accuracy", "MAE"):
                yield from mean(cell, [part for part in cells if getattr(part, label)], source)


def dataset_means(table: str) -> Iterator[Derived]:
    for cell in published.cells(table, dataset="", measure="accuracy"):
        labels = {label: getattr(cell, label) for label in ("selection", "weights") if getattr(cell, label)}
        parts = published.cells(table, algorithm=cell.algorithm, measure="accuracy", **labels)
        yield from mean(cell, [part for part in parts if part.dataset], "mean over datasets")


def domainbed() -> Iterator[Derived]:
    yield from column_means("domainbed/table-1", "domain", "mean over domains")
    yield from dataset_means("domainbed/table-4")
    for cells in rows("domainbed/table-5", "domain"):
        one_decimal = all(round(10 * cell.mean, 6).is_integer() for cell in cells)  # cited so, and filled up with zeros
        for average in mean(cells[-1], cells[:-1], "mean over domains"):
            yield average._replace(slack=0.095) if one_decimal else average
    by_domain = [cell for i in range(1, 8) for cell in published.table(f"domainbed/appendix-b-{i}")]
    for cell in published.table("domainbed/table-4"):
        labels = (cell.algorithm, cell.selection, cell.dataset)
        parts = [part for part in by_domain if (part.algorithm, part.selection, part.dataset) == labels]
        yield from mean(cell, parts, "mean over domains in appendix B")
    for cell in published.table("domainbed/table-1"):
        labels = {label: getattr(cell, label) for label in published.LABELS}
        yield from same(
            cell, next(other for other in published.cells("domainbed", **labels) if other.table != cell.table)
        )
    runs = sum(n + math.comb(n, 2) for n in (3, 6, 4, 4, 4, 4, 6)) * 20 * 3 * 9
    source = "one or two of the domains left out × 20 draws × 3 trials × 9 algorithms"
    yield Derived("domainbed", "section 5, number of networks", 45900, 0, runs, EXACT, source)


def ranking_score(part: Cell) -> int:
    (erm,) = published.cells(part.table, algorithm="ERM", dataset=part.dataset)
    return (part.mean > erm.mean + erm.spread + 1e-9) - (part.mean < erm.mean - erm.spread - 1e-9)


def ood_bench() -> Iterator[Derived]:
    for table in ("ood-bench/table-1", "ood-bench/table-2"):
        yield from dataset_means(table)
        yield from column_means(table, "algorithm", "mean over algorithms")
        for cell in published.cells(table, measure="ranking score"):
            parts = published.cells(table, algorithm=cell.algorithm, measure="accuracy")
            score = sum(ranking_score(part) for part in parts if part.dataset)
            yield derived(cell, score, EXACT, "accuracies against ERM's ± standard error")
    for cell in published.cells("ood-bench/table-2", measure="ranking score in table 1"):
        (other,) = published.cells("ood-bench/table-1", algorithm=cell.algorithm, measure="ranking score")
        yield derived(cell, other.mean, EXACT, other.table)


def nico() -> Iterator[Derived]:
    for table in (f"nico-plus-plus/table-{number}" for number in (2, 5, 7, 9)):
        yield from column_means(table, "domain", "mean over domains")
        for cells in rows(table, "domain", "measure"):
            parts = [cell for cell in cells if cell.domain]
            overall, _, deviation = (cell for cell in cells if not cell.domain)
            yield from mean(overall, parts, "mean over images", {part.domain: IMAGES[part.domain] for part in parts})
            value = statistics.pstdev(part.mean for part in parts)
            yield derived(deviation, value, half(deviation), "standard deviation of the four domains, divisor 4")
    for number in (3, 6, 8):
        for random, compositional, both in rows(f"nico-plus-plus/table-{number}", "setting"):
            yield from mean(both, [random, compositional], "mean of random and compositional")


def leakages(group: list[list[Cell]]) -> Iterator[Derived]:
    """The rows of one group of test domains: selection by validation, then by oracles that see K of its domains."""
    averages = [statistics.fmean(cell.mean for cell in row if cell.domain) for row in group]
    error = 2 * half(group[0][0])
    first = averages[1] - averages[0]
    for row, average in zip(group, averages, strict=True):
        leaked = average - averages[0]
        *_, leakage, change = row
        yield derived(leakage, leaked, error, "its mean less that without oracle")
        if change.mean is not None:
            ratios = [(leaked + a) / (first + b) for a, b in itertools.product((-error, error), repeat=2)]
            value, slack = (max(ratios) + min(ratios)) / 2 - 1, (max(ratios) - min(ratios)) / 2
            yield derived(change, 100 * value, 100 * slack, "leakage against that of K=1")


def leaderboard(weights: str) -> dict[str, float]:
    """Each algorithm's mean over datasets, from the parts."""
    numbers = (20, 21) if weights == "scratch" else (5,)
    scores = defaultdict(list)
    for number in numbers:
        for cell in published.cells(f"domainbed-v2/table-{number}", weights=weights, domain="", measure="accuracy"):
            if cell.dataset:
                scores[cell.algorithm].append(cell.mean)
    return {algorithm: statistics.fmean(values) for algorithm, values in scores.items()}


def ranks(weights: str) -> dict[str, int]:
    scores = leaderboard(weights)
    return {
        algorithm: 1 + sum(other > score + 1e-9 for other in scores.values()) for algorithm, score in scores.items()
    }


def rank_correlation(first: str, second: str) -> float:
    one, other = leaderboard(first), leaderboard(second)
    return stats.spearmanr([one[algorithm] for algorithm in one], [other[algorithm] for algorithm in one]).statistic


def domainbed_v2() -> Iterator[Derived]:
    for number in (1, 3, 4, *range(6, 22)):
        yield from column_means(f"domainbed-v2/table-{number}", "domain", "mean over domains")
    for cell in published.cells("domainbed-v2/table-2", measure="gap of linear probe to fine-tuning"):
        probe, tuned = published.cells("domainbed-v2/table-1", dataset=cell.dataset, domain=cell.domain)
        slack = half(probe) * (1 + probe.mean / tuned.mean) / tuned.mean
        yield derived(cell, (probe.mean - tuned.mean) / tuned.mean, slack, "accuracies of table-1")
    for start in range(0, 16, 4):
        by_setting = list(rows("domainbed-v2/table-4", "domain", "measure"))
        yield from leakages(by_setting[start : start + 4])
    yield from dataset_means("domainbed-v2/table-5")
    details = [cell for number in range(9, 20) for cell in published.cells(f"domainbed-v2/table-{number}", domain="")]
    for cell in published.table("domainbed-v2/table-5"):
        old, new = ranks("imagenet")[cell.algorithm], ranks(cell.weights)[cell.algorithm]
        if cell.measure == "rank":
            yield derived(cell, new, EXACT, "rank of its mean over datasets")
        elif cell.measure == "change of rank" and cell.mean is not None:
            yield derived(cell, old - new, EXACT, "old rank less new rank")
        for other in details:
            if (other.algorithm, other.weights, other.dataset) == (cell.algorithm, cell.weights, cell.dataset):
                yield from same(cell, other)
    for cell in published.table("domainbed-v2/table-1"):
        labels = {label: getattr(cell, label) for label in published.LABELS}
        for other in published.cells("domainbed-v2", **labels):
            if other.table != cell.table:
                yield from same(other, cell)
    source = "rank of the mean of tables 20 and 21"
    yield Derived(
        "domainbed-v2", "section 3.2, rank of SWAD from scratch", 1, 0, ranks("scratch")["SWAD"], EXACT, source
    )
    pairs = {("imagenet", "scratch"): 0.261, ("moco-v2", "scratch"): 0.576, ("moco-v3", "scratch"): 0.600}
    for (one, other), printed in {**pairs, ("moco-v2", "moco-v3"): 0.794}.items():
        cell = f"section 3.2, Spearman correlation of {one} and {other}"
        yield Derived("domainbed-v2", cell, printed, 3, rank_correlation(one, other), 0, "means over datasets")


def cifar_10_w() -> Iterator[Derived]:
    for number in (2, 3, 6, 7, 8):
        table = f"cifar-10-w/table-{number}"
        groups = GROUPS if number in (2, 6) else {"": DIFFUSION | KW | KWC}
        for cells in rows(table, "domain"):
            by_domain = {cell.domain: cell for cell in cells if cell.dataset == "CIFAR-10-W"}
            for group, weights in groups.items() if by_domain else ():
                parts = [by_domain[domain] for domain in weights]
                yield from mean(by_domain[group], parts, "mean over test domains", weights)
        yield from column_means(table, "algorithm", "mean over predictors")
    for cell in published.cells("cifar-10-w/table-7", setting="trained on Diff-C"):
        labels = {"algorithm": cell.algorithm, "domain": cell.domain, "setting": "1 source"}
        yield from same(cell, *published.cells("cifar-10-w/table-3", **labels))
    for network, printed in {"ResNet44": 0.066, "RepVGG-A0": 0.733, "ShuffleNetV2": 0.644}.items():
        cells = [cell for cell in published.cells("cifar-10-w/table-2", network=network, domain="") if cell.algorithm]
        tau = stats.kendalltau([cell.mean for cell in cells[::2]], [cell.mean for cell in cells[1::2]]).statistic
        cell = f"appendix A.2.3, Kendall correlation of predictors' errors, {network}"
        yield Derived("cifar-10-w", cell, printed, 3, tau, 0, "CIFAR-10-Cs and CIFAR-10-W in table-2")
    three = {(c.algorithm, c.domain): c.mean for c in published.cells("cifar-10-w/table-3", setting="3 sources")}
    for group, weights, printed in (("KW", KW, -0.59), ("KWC", KWC, 0.56)):
        gains = [n * (three["SagNet", domain] - three["ERM", domain]) for domain, n in weights.items()]
        cell = f"appendix A.2.4, gain of SagNet over ERM with 3 sources, {group}"
        gain = sum(gains) / sum(weights.values())
        yield Derived("cifar-10-w", cell, printed, 2, gain, 0.01, "mean over test domains in table-3")


ALL_DERIVED = [*domainbed(), *ood_bench(), *nico(), *domainbed_v2(), *cifar_10_w()]
ALL_CELLS = [cell for table in published.tables() for cell in published.table(table)]


def test_the_numbers_that_do_not_follow_from_their_parts_are_the_errata():
    found = sorted(number.erratum for number in ALL_DERIVED if not number.follows)
    listed = sorted(line for line in ERRATA.read_text().splitlines() if line.startswith(tuple(f"| {p}" for p in CELLS)))
    assert found == listed
    assert len(set(found)) == len(found)


def test_everything_derived_was_recomputed():
    assert Counter(number.table.split("/")[0] for number in ALL_DERIVED) == DERIVED


def test_all_tables_are_here_with_all_their_cells():
    counts = defaultdict(list)
    for table in published.tables():
        counts[table.split("/")[0]].append(len(published.table(table).cells))
    assert counts == CELLS
    files = {str(path.relative_to(published.HERE).with_suffix("")) for path in published.HERE.glob("*/*.csv")}
    assert files == set(published.tables())


def test_no_cell_is_there_twice():
    keys = [(cell.table, *(getattr(cell, label) for label in published.LABELS)) for cell in ALL_CELLS]
    assert len(set(keys)) == len(keys)


def test_what_cannot_be_read_has_a_reason_and_what_is_reconstructed_is_marked():
    assert all(cell.note for cell in ALL_CELLS if cell.mean is None)
    assert Counter(cell.table for cell in ALL_CELLS if cell.note.startswith("unreadable")) == UNREADABLE
    assert Counter(cell.table.split("/")[1] for cell in ALL_CELLS if cell.reconstructed) == RECONSTRUCTED


def test_every_table_says_where_it_stands():
    for table in map(published.table, published.tables()):
        first, last = map(int, table.lines.split("-"))
        assert table.paper and table.place and table.what and first < last
        assert bool(table.spread) == any(cell.spread is not None for cell in table)


def test_datasets_and_domains_have_the_names_of_their_cards():
    for cell in ALL_CELLS:
        if cell.dataset not in ("", "I.I.D.", "MNIST-M", "CIFAR-10-Cs"):
            card = DATASETS[cell.dataset].card
            assert cell.domain in {"", *card.domains, *(GROUPS | DIFFUSION | KW | KWC if "-W" in card.name else ())}


def test_algorithms_have_registry_names_unless_the_paper_only_cites_them():
    for cell in ALL_CELLS:
        if cell.measure != "MAE" and not cell.setting.startswith("cited from"):
            assert cell.algorithm in ALGORITHMS
    assert not set(published.aliases()) & {cell.algorithm for cell in ALL_CELLS}


def test_arrows_of_ood_bench_say_what_the_ranking_score_counts():
    for cell in published.cells("ood-bench", measure="accuracy"):
        if cell.algorithm and cell.dataset:
            assert cell.note == {1: "↑", 0: "", -1: "↓"}[ranking_score(cell)]


def test_domainbed_v2_prints_the_vlcs_rows_again_as_terra_incognita():
    vlcs, terra = (
        [(cell.network, cell.weights, cell.setting, cell.mean, cell.spread) for cell in cells]
        for cells in (published.cells("domainbed-v2/table-6", dataset=name) for name in ("VLCS", "TerraIncognita"))
    )
    assert terra == [row for row in vlcs if row[:2] in {("resnet50", "moco-v2"), ("vit_base_patch16_224", "moco-v3")}]


def test_cells_are_found_by_their_labels_and_by_the_papers_names():
    (cell,) = published.cells("domainbed", dataset="PACS", domain="sketch", algorithm="DRO", selection="oracle")
    assert (cell.table, cell.algorithm, cell.mean, cell.spread) == ("domainbed/appendix-b-4", "GroupDRO", 80.6, 0.9)
    (cell,) = published.cells("nico-plus-plus/table-5", algorithm="Deepall", setting="split-2", domain="dim")
    assert (cell.algorithm, cell.mean, cell.network) == ("ERM", 68.0, "resnet18")
    assert [cell.mean for cell in published.cells("domainbed/table-4", algorithm="ERM", dataset="")] == [
        67.0,
        63.8,
        68.9,
    ]


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="Did you mean domainbed/table-4"):
        published.table("domainbed/table-44")
    with pytest.raises(UnknownNameError, match="Did you mean nico-plus-plus"):
        published.cells("nico-plus")
    with pytest.raises(UnknownNameError, match="Did you mean dataset"):
        published.cells("domainbed", datasets="PACS")
