"""Leaderboards and ranking scores against the papers' own numbers and numbers computed by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from shiftbed import published
from shiftbed.data import card
from shiftbed.errors import ShiftbedError
from shiftbed.selection import SELECTIONS
from shiftbed.shift.estimates import ShiftEstimate, dominant
from shiftbed.shift.kept import shift_kinds
from shiftbed.tables import (
    Leaderboard,
    as_rows,
    leaderboards,
    make_tables,
    ranking_grid,
    ranking_score,
    ranks,
    render,
    spearman,
)
from shiftbed.tables.estimates import Estimate, spearman_interval
from tests.made_records import made_job

TABLE = "domainbed-v2/table-5"
SUPERVISED = Leaderboard.published(TABLE, "supervised", weights="imagenet")
MOCO = Leaderboard.published(TABLE, "MoCo-v2", weights="moco-v2")
VIT = Leaderboard.published(TABLE, "MoCo-v3", weights="moco-v3")
SCRATCH = {
    **{"ERM": (33.3, 49.1), "SWAD": (37.5, 55.3), "RSC": (34.3, 50.2), "GroupDRO": (29.3, 49.9), "Fishr": (33.5, 49.3)},
    **{"CORAL": (31.3, 48.9), "MMD": (31.7, 49.9), "SagNet": (32.2, 49.1), "IRM": (33.3, 48.7), "Mixup": (34.5, 58.8)},
}


def test_ranks_of_domainbed_v2_s_leaderboards():
    order = ("ERM", "SWAD", "RSC", "GroupDRO", "Fishr", "CORAL", "MMD", "SagNet", "IRM", "Mixup")
    assert [SUPERVISED.ranks[name] for name in order] == [6, 1, 7, 8, 3, 2, 10, 4, 9, 5]
    assert [MOCO.ranks[name] for name in order] == [6, 1, 2, 10, 8, 3, 5, 9, 7, 4]
    assert [VIT.ranks[name] for name in order] == [5, 1, 2, 8, 6, 3, 10, 9, 7, 4]


def test_a_paper_s_oracle_numbers_are_marked_and_never_stand_for_others():
    with pytest.raises(ShiftbedError, match="several numbers of ERM on ColoredMNIST; name one of its tables"):
        Leaderboard.published("domainbed")
    assert not Leaderboard.published("domainbed", selection="training-domain-validation").has_oracle
    assert Leaderboard.published("domainbed", selection="oracle").has_oracle


def test_equal_averages_share_a_rank_whatever_rounding_makes_of_their_sums():
    rows = {"CORAL": (62.3, 88.0, 75.1, 75.2, 77.6), "MMD": (62.2, 88.2, 74.9, 75.4, 77.5)}  # both sum to 378.2
    estimates = {str(k): {name: Estimate(row[k], 0.1, 3) for name, row in rows.items()} for k in range(5)}
    assert Leaderboard("made", estimates, dict.fromkeys(estimates)).ranks == {"CORAL": 1, "MMD": 1}


def test_a_dataset_with_the_name_of_another_number_keeps_its_own():
    names = ("algorithm", "average", "n", "rank")
    estimates = {name: {"ERM": Estimate(float(place), 0.1, 3)} for place, name in enumerate(names)}
    (row,) = Leaderboard("made", estimates, dict.fromkeys(estimates)).grid().data
    assert [row[f"dataset {name}"] for name in names] == [0, 1, 2, 3]
    assert (row["algorithm"], row["average"], row["n"], row["rank"]) == ("ERM", 1.5, 3, 1)


def test_changes_of_rank_are_the_printed_ones():
    for weights, board in (("moco-v2", MOCO), ("moco-v3", VIT)):
        rows = {row["algorithm"]: row["change_of_rank"] for row in board.grid(SUPERVISED).data}
        printed = published.cells(TABLE, weights=weights, measure="change of rank")
        assert len(printed) == 10
        for cell in printed:
            assert rows[cell.algorithm] == (cell.mean or 0)


def test_rank_correlations_are_the_printed_ones():
    scratch = {name: sum(both) / 2 for name, both in SCRATCH.items()}
    found = [spearman(board.averages, scratch) for board in (SUPERVISED, MOCO, VIT)]
    assert [round(one, 3) for one in found] == [0.261, 0.576, 0.6]
    assert round(spearman(MOCO.averages, VIT.averages), 3) == 0.794


def test_a_correlation_of_printed_leaderboards_has_a_wide_interval():
    correlation, (low, high), n = MOCO.agreement(VIT)
    assert n == 10 and low < correlation < high <= 1 and high - low > 0.3
    assert "0.794, 95 % interval 0.23 to 0.96, n = 10 algorithms" in " ".join(MOCO.grid(VIT).notes)


@pytest.mark.parametrize(("n", "rho"), [(4, 0.6), (5, 0.0), (5, 0.9), (8, 0.6), (10, 0.3), (20, 0.9)])
def test_the_interval_of_a_rank_correlation_holds_it_and_what_is_true(n, rho):
    """Of a normal copula Spearman's correlation is 6/π · arcsin(ρ/2) (Pearson, 1907)."""
    random, truth, held = np.random.default_rng(0), 6 / np.pi * np.arcsin(rho / 2), []
    for _ in range(500):
        one, noise = random.normal(size=(2, n))
        found = spearman(dict(enumerate(one)), dict(enumerate(rho * one + np.sqrt(1 - rho**2) * noise)))
        low, high = spearman_interval(found, n)
        assert -1 <= low <= found <= high <= 1 and low < high
        held.append(low <= truth <= high)
    assert np.mean(held) >= 0.93


def test_the_interval_of_a_rank_correlation_by_hand():
    """tanh(0.30952 ± 1.95996 · √(1.045/7)): about ± 0.6. Even the same order twice leaves doubt."""
    assert spearman_interval(0.3, 10) == pytest.approx((-0.42006, 0.78825), abs=1e-5)
    low, high = spearman_interval(1.0, 5)
    assert 0 < low < 0.3 and high == 1
    assert spearman_interval(-1.0, 5) == pytest.approx((-high, -low))


def test_a_correlation_of_two_or_three_algorithms_has_no_interval():
    """Of two it is 1 or -1 whatever is true."""
    assert [spearman_interval(1.0, n) for n in (2, 3)] == [None, None]
    two = {"ERM": Estimate(50.0, None, 1), "CORAL": Estimate(60.0, None, 1)}
    one, other = (Leaderboard(name, {"Toy": two}, {"Toy": None}) for name in ("one", "other"))
    assert "other: 1.000, too few for an interval, n = 2 algorithms" in " ".join(one.grid(other).notes)


def test_spearman_needs_an_order():
    assert spearman({"a": 1, "b": 2}, {"a": 3, "b": 3}) is None
    assert spearman({"a": 1}, {"a": 3}) is None
    assert spearman({"a": 1, "b": 2, "c": 9}, {"a": 5, "b": 7}) == pytest.approx(1), "of the names that both have"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=10))
def test_spearman_is_scipy_s_and_keeps_under_monotone_maps(pairs):
    first, second = ({str(i): float(p[side]) for i, p in enumerate(pairs)} for side in (0, 1))
    found = spearman(first, second)
    if len(set(first.values())) == 1 or len(set(second.values())) == 1:
        assert found is None
        return
    assert found == pytest.approx(stats.spearmanr(list(first.values()), list(second.values())).statistic, abs=1e-12)
    assert spearman({name: np.exp(value) for name, value in first.items()}, second) == pytest.approx(found)


def test_equal_values_share_the_better_rank():
    assert ranks({"a": 1.0, "b": 3.0, "c": 3.0, "d": 0.0}) == {"b": 1, "c": 1, "a": 3, "d": 4}


@pytest.mark.parametrize("table", ["ood-bench/table-1", "ood-bench/table-2"])
def test_ranking_scores_of_ood_bench_are_reproduced(table):
    grid = ranking_grid(Leaderboard.published(table))
    (kind,) = {"diversity", "correlation"} & set(grid.data[0]) or {"unknown"}
    scores = {
        row["algorithm"]: sum(v for k, v in row.items() if k not in ("leaderboard", "oracle", "algorithm"))
        for row in grid.data
    }
    printed = {cell.algorithm: cell.mean for cell in published.cells(table, measure="ranking score")}
    assert len(printed) == 16 and scores == printed
    assert kind in " ".join(grid.notes)


def test_the_ends_of_erm_s_interval_are_inside():
    erm = {"x": (50.0, 1.0), "y": (60.0, 0.1)}
    assert ranking_score({"x": 51.0, "y": 59.9}, erm) == 0
    assert ranking_score({"x": 51.1, "y": 60.2}, erm) == 2
    assert ranking_score({"x": 48.9, "y": 60.2}, erm) == 0
    assert ranking_score({"x": 48.9}, erm) is None


def sweep(values):
    """Jobs that test domain c of each dataset: {dataset: {algorithm: accuracies by trial}}."""
    return [
        made_job(0, [(30, {"a/out": 0.5, "b/out": 0.5, "c/in": v, "c/out": v})], dataset=d, algorithm=a, trial=t)
        for d, rows in values.items()
        for a, trials in rows.items()
        for t, v in enumerate(trials)
    ]


VALUES = {
    "PACS": {"ERM": (0.50, 0.52), "CORAL": (0.59, 0.61), "IRM": (0.30, 0.32)},
    "CelebA": {"ERM": (0.70, 0.72), "CORAL": (0.50, 0.52), "IRM": (0.71, 0.71)},
    "Toy": {"ERM": (0.10, 0.12), "CORAL": (0.20, 0.22)},
}


def board_of(values, rule="training-domain-validation"):
    (board,) = leaderboards(make_tables(sweep(values), [SELECTIONS[rule]]))
    return board


def test_averages_over_datasets_leave_out_who_lacks_one():
    board = board_of(VALUES)
    assert list(board.estimates) == ["CelebA", "PACS", "Toy"]
    assert board.averages == {"ERM": pytest.approx((51 + 71 + 11) / 3), "CORAL": pytest.approx((60 + 51 + 21) / 3)}
    assert board.average_error("ERM") == pytest.approx(np.sqrt(3 * 1**2) / 3), "each dataset's is 1 point"
    assert board.average_error("IRM") is None
    text = render([board.grid()])
    assert [line.split()[0] for line in text.splitlines() if line[:3] in ("ERM", "COR", "IRM")] == [
        "ERM",
        "CORAL",
        "IRM",
    ]
    assert max(map(len, text.splitlines())) <= 80


def test_a_dataset_whose_jobs_all_diverged_takes_nobody_s_rank():
    """The page ranked by the other datasets, and tables ranked nobody."""
    lost = [made_job(0, [], dataset="Broken", algorithm=name, status="diverged") for name in ("ERM", "CORAL")]
    (board,) = leaderboards(make_tables([*sweep(VALUES), *lost], [SELECTIONS["training-domain-validation"]]))
    assert list(board.estimates) == ["CelebA", "PACS", "Toy"] and board.ranks == board_of(VALUES).ranks


def test_references_are_called_so_and_never_ranked():
    jobs = sweep({name: VALUES[name] for name in ("PACS", "Toy")})
    for job in jobs:
        if job.description["dataset"] == "Toy":
            job.description["task"] = {"kind": "target-trained", "domains": ["c"]}
    tables = make_tables(jobs, [SELECTIONS["training-domain-validation"]])
    assert leaderboards(tables) == []
    title = " ".join(render(tables).split())
    assert "Toy (version 1), recipe quick, 30 steps, target-trained per domain: a reference, not a result" in title
    assert [row["task"] for row in as_rows(tables)][::4] == ["leave-out"] * 2 + ["target-trained"]


def test_oracle_numbers_are_marked_in_leaderboards_too():
    board = board_of(VALUES, "oracle")
    for grid, numbers in ((board.grid(), 8 + 2), (ranking_grid(board), 8)):
        shown = [entry.text for _, entries in grid.rows for entry in entries]
        assert sum("†" in text for text in shown) == numbers
        assert "† Oracle" in render([grid]) and all(row["oracle"] for row in grid.data)
    assert "†" not in render([board_of(VALUES).grid(), ranking_grid(board_of(VALUES))])


def test_kinds_of_shift_stand_side_by_side():
    grid = ranking_grid(board_of(VALUES))
    scores = {row["algorithm"]: (row["diversity"], row["correlation"], row["unknown"]) for row in grid.data}
    assert scores == {"ERM": (0, 0, 0), "CORAL": (1, -1, 1), "IRM": (-1, 0, None)}
    assert grid.commands == [("To measure what kind of shift Toy has:", "shiftbed shift Toy --out=DIR/shift")]
    known = ranking_grid(board_of(VALUES), {"Toy": "correlation", "PACS": None})
    assert known.columns == ["diversity (1)", "correlation (2)"] and not known.commands
    assert "correlation: CelebA, Toy (measured)." in known.notes
    assert "diversity: PACS (by its card; measured, neither kind dominates)." in known.notes, "so the card counts"


def test_a_stored_estimate_says_the_kind_of_shift(tmp_path):
    (tmp_path / "shift").mkdir()
    for name, width in (("Toy", 0.1), ("Unsure", 0.5)):
        pair = [
            ShiftEstimate(kind, v, interval=(v - width, v + width))
            for kind, v in (("diversity", 0.2), ("correlation", 0.6))
        ]
        found = {one.name: one.as_json() for one in pair}
        (tmp_path / "shift" / f"{name}.json").write_text(json.dumps({"dataset": name, **found}))
    (tmp_path / "shift" / "Toy-matrix.json").write_text('{"cells": []}')
    assert shift_kinds(tmp_path) == {"Toy": "correlation", "Unsure": None}
    assert shift_kinds(tmp_path / "elsewhere") == {}


def test_the_cards_of_built_in_datasets_say_what_was_measured():
    measured = json.loads((Path(__file__).parents[1] / "docs" / "shift-plane.json").read_text())
    for name, pair in measured.items():
        assert card(name).shift == dominant(*map(ShiftEstimate.from_json, pair))
    assert set(measured) >= {"ColoredDigits", "RotatedDigits"}


def test_a_ranking_score_needs_erm_s_standard_error():
    once = {name: {alg: trials[:1] for alg, trials in rows.items()} for name, rows in VALUES.items()}
    with pytest.raises(ShiftbedError, match="needs ERM on CelebA with at least two trials"):
        ranking_grid(board_of(once))


def test_one_dataset_has_no_leaderboard_and_two_tables_of_one_are_refused():
    tables = make_tables(sweep({"Toy": VALUES["Toy"]}), [SELECTIONS["oracle"], SELECTIONS["last-step"]])
    assert leaderboards(tables) == []
    with pytest.raises(ShiftbedError, match="one table of Toy"):
        Leaderboard.of(tables)


def test_changes_of_rank_are_printed_with_their_sign():
    rows = {name: [entry.text for entry in entries] for name, entries in MOCO.grid(SUPERVISED).rows}
    assert rows["RSC"][-2:] == ["2", "+5"] and rows["SagNet"][-2:] == ["9", "-5"] and rows["SWAD"][-2:] == ["1", "0"]
