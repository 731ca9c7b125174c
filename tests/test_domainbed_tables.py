"""DomainBed's three tables of a small sweep in its own format, number by number.

All accuracies are in percent. A sweep of one algorithm on three environments, two draws, two checkpoints, three
trials. What each rule picks is worked out below by hand; trials 1 and 2 report 1 and 4 points more than trial 0, so
that every cell has a mean 5/3 above that of trial 0.
"""

import json
import math
from itertools import combinations, product

import numpy as np
import pytest

from shiftbed.sweeps.domainbed_format import import_domainbed
from shiftbed.tables import AVERAGE, as_text, read_tables

EXTRA = (0, 1, 4)
# √(((5/3)² + (2/3)² + (7/3)²) / 3) = √(26/9), over √3; and with divisor 2 instead of 3.
POPULATION, SAMPLE = math.sqrt(26 / 9 / 3), math.sqrt(26 / 9 * 3 / 2 / 3)
RULES = ["training-domain-validation", "domain-cross-validation", "oracle"]

# Environments tested, draw, checkpoint: what matters of the record.
RECORDS = {
    # Environment 0: on validation draw 0 has 60 and 65, draw 1 has 60 and 63: the second checkpoint of draw 0, 73.
    # At the last checkpoint the test environment says 60 and 75: draw 1, 69.
    ((0,), 0, 0): {"env1_out": 90, "env2_out": 30, "env0_in": 71, "env0_out": 70},
    ((0,), 0, 1): {"env1_out": 80, "env2_out": 50, "env0_in": 73, "env0_out": 60},
    ((0,), 1, 0): {"env1_out": 70, "env2_out": 50, "env0_in": 77, "env0_out": 90},
    ((0,), 1, 1): {"env1_out": 60, "env2_out": 66, "env0_in": 69, "env0_out": 75},
    # Environment 1: draw 0 has 50 twice, of which the first counts, 55; the oracle's draws are equal at 20, of which
    # the last counts, 85.
    ((1,), 0, 0): {"env0_out": 50, "env2_out": 50, "env1_in": 55, "env1_out": 10},
    ((1,), 0, 1): {"env0_out": 60, "env2_out": 40, "env1_in": 65, "env1_out": 20},
    ((1,), 1, 0): {"env0_out": 20, "env2_out": 20, "env1_in": 95, "env1_out": 20},
    ((1,), 1, 1): {"env0_out": 40, "env2_out": 40, "env1_in": 85, "env1_out": 20},
    # Environment 2: draw 0 has 75 at first, draw 1 at last; of equal draws the last counts, 45. The oracle: 38 against
    # 35, draw 0, 50; the 60 of an earlier checkpoint does not count.
    ((2,), 0, 0): {"env0_out": 80, "env1_out": 70, "env2_in": 40, "env2_out": 42},
    ((2,), 0, 1): {"env0_out": 84, "env1_out": 60, "env2_in": 50, "env2_out": 38},
    ((2,), 1, 0): {"env0_out": 70, "env1_out": 76, "env2_in": 60, "env2_out": 60},
    ((2,), 1, 1): {"env0_out": 78, "env1_out": 72, "env2_in": 45, "env2_out": 35},
    # Pairs. For environment 0 draw 0 has (60 + 20)/2 = 40 and (62 + 30)/2 = 46, draw 1 (90 + 10)/2 = 50 and
    # (40 + 80)/2 = 60: 69. For environment 1 draw 0 has 30 and 50, draw 1 40 and 10: 65. For environment 2 draw 0 has
    # 40 and 50, draw 1 41 and 42: 50.
    ((0, 1), 0, 0): {"env0_in": 30, "env1_in": 60},
    ((0, 1), 0, 1): {"env0_in": 50, "env1_in": 62},
    ((0, 1), 1, 0): {"env0_in": 60, "env1_in": 90},
    ((0, 1), 1, 1): {"env0_in": 10, "env1_in": 40},
    ((0, 2), 0, 0): {"env0_in": 50, "env2_in": 20},
    ((0, 2), 0, 1): {"env0_in": 30, "env2_in": 30},
    ((0, 2), 1, 0): {"env0_in": 40, "env2_in": 10},
    ((0, 2), 1, 1): {"env0_in": 40, "env2_in": 80},
    ((1, 2), 0, 0): {"env1_in": 30, "env2_in": 30},
    ((1, 2), 0, 1): {"env1_in": 70, "env2_in": 50},
    ((1, 2), 1, 0): {"env1_in": 42, "env2_in": 20},
    ((1, 2), 1, 1): {"env1_in": 44, "env2_in": 10},
}
CHOSEN = {  # of trial 0, in the order of the environments
    "training-domain-validation": (73, 55, 45),
    "domain-cross-validation": (69, 65, 50),
    "oracle": (69, 85, 50),
}


def row(tested, draw, trial, checkpoint, known):
    accuracies = {f"env{env}_{part}": 1 for env in range(3) for part in ("in", "out")} | known
    if len(tested) == 1:
        accuracies[f"env{tested[0]}_in"] += EXTRA[trial]
    return {
        **{f"{name}_acc": value / 100 for name, value in accuracies.items()},
        "args": {
            "algorithm": "ERM",
            "dataset": "ColoredMNIST",
            "test_envs": list(tested),
            "trial_seed": trial,
            "hparams_seed": draw,
            "hparams": None,
            "holdout_fraction": 0.2,
            "steps": 101,
            "checkpoint_freq": 100,
            "output_dir": f"run-{tested}-{draw}-{trial}",
        },
        "hparams": {"lr": 0.001 * (1 + draw)},
        "step": 100 * checkpoint,
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("domainbed")
    runs = {(tested, draw) for tested, draw, _ in RECORDS}
    for tested, draw in runs:
        for trial in range(3):
            rows = [row(tested, draw, trial, place, RECORDS[tested, draw, place]) for place in (0, 1)]
            write(folder / "sweep" / f"{tested}-{draw}-{trial}", rows, done=True)
    # A run that was killed after its first checkpoint: better than all others, and not there.
    best = {f"env{env}_{part}": 90 for env in range(3) for part in ("in", "out")}
    write(folder / "sweep" / "killed", [row((2,), 2, 0, 0, best)], done=False)
    found = import_domainbed(folder / "sweep", folder / "store")
    assert (found.jobs, found.partial) == (6 * 2 * 3, ["killed"])
    return folder / "store"


def write(folder, rows, done):
    folder.mkdir(parents=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    if done:
        (folder / "done").write_text("done")


@pytest.mark.parametrize("rule", RULES)
def test_every_number_is_domainbed_s(store, rule):
    (table,) = read_tables(store, [rule], se="population")
    cells = [table.estimates["ERM", column] for column in table.columns]
    assert [cell.mean for cell in cells] == pytest.approx([number + 5 / 3 for number in CHOSEN[rule]])
    assert [cell.standard_error for cell in cells] == pytest.approx([POPULATION] * 3)
    average = table.estimates["ERM", AVERAGE]
    assert average.mean == pytest.approx(sum(CHOSEN[rule]) / 3 + 5 / 3)
    assert (average.standard_error, average.n) == (pytest.approx(POPULATION), 3)


def test_the_three_printed_tables(store):
    printed = [
        next(line for line in as_text(table).splitlines() if line.startswith("ERM"))
        for table in read_tables(store, RULES, se="population")
    ]
    # 73 + 5/3 = 74.7, …; averages (73 + 55 + 45)/3 + 5/3 = 59.3, (69 + 65 + 50)/3 + 5/3 = 63.0, 204/3 + 5/3 = 69.7.
    assert [line.split()[1:] for line in printed] == [
        ["74.7", "±1.0", "56.7", "±1.0", "46.7", "±1.0", "59.3", "±1.0"],
        ["70.7", "±1.0", "66.7", "±1.0", "51.7", "±1.0", "63.0", "±1.0"],
        ["70.7†", "±1.0", "86.7†", "±1.0", "51.7†", "±1.0", "69.7†", "±1.0"],
    ]


def test_the_sample_standard_error_is_larger(store):
    (table,) = read_tables(store, ["oracle"])
    assert table.estimates["ERM", AVERAGE].standard_error == pytest.approx(SAMPLE)


def random_sweep(random):
    """A sweep of two trials, some of whose runs are missing: trials × draws × one or two environments."""
    for trial, draw, count in product(range(2), range(3), (1, 2)):
        for tested in combinations(range(3), count):
            if count == 1 or random.random() > 0.1:
                known = [{f"env{e}_{p}": random.integers(100, 999) / 10 for e in range(3) for p in ("in", "out")}]
                known += [{name: random.integers(100, 999) / 10 for name in known[0]}]
                yield [row(tested, draw, trial, place, one) for place, one in enumerate(known)]


def picked(runs, rule, test, trial):
    """What DomainBed's rule reports for a test environment, run by run and record by record."""
    best = (-1, None)
    mine = {(r[0]["args"]["hparams_seed"], *r[0]["args"]["test_envs"]): r for r in runs if is_of(r, trial)}
    for draw in range(3):
        alone = mine[draw, test]
        others = [e for e in range(3) if e != test]
        pairs = [mine.get((draw, *sorted((test, other)))) for other in others]
        if rule == "training-domain-validation":
            scores = [np.mean([one[f"env{e}_out_acc"] for e in others]) for one in alone]
        elif rule == "oracle":
            scores = [-1, alone[-1][f"env{test}_out_acc"]]
        elif None in pairs:
            continue
        else:
            both = zip(*pairs, strict=True)
            scores = [np.mean([one[f"env{e}_in_acc"] for e, one in zip(others, some, strict=True)]) for some in both]
        if max(scores) >= best[0]:
            best = (max(scores), alone[int(np.argmax(scores))][f"env{test}_in_acc"])
    return best[1]


def is_of(run, trial):
    return run[0]["args"]["trial_seed"] == trial


def test_random_sweeps_have_the_numbers_of_a_second_implementation(tmp_path):
    runs = list(random_sweep(np.random.default_rng(9)))
    for number, rows in enumerate(runs):
        write(tmp_path / "sweep" / str(number), rows, done=True)
    import_domainbed(tmp_path / "sweep", tmp_path / "store")
    for table in read_tables(tmp_path / "store", RULES, se="population"):
        cells = np.array([[picked(runs, table.selection.name, test, t) for t in range(2)] for test in range(3)], float)
        cells = np.vstack([cells, cells.mean(axis=0)])  # and the average
        shown = next(line for line in as_text(table).splitlines() if line.startswith("ERM")).replace("†", "").split()
        assert shown[1::2] == [f"{100 * np.mean(values):.1f}" for values in cells], "halves are rounded alike"
        assert shown[2::2] == [f"±{100 * np.std(values / np.sqrt(2)):.1f}" for values in cells]


def test_what_domainbed_did_not_train_is_no_command_of_ours(tmp_path):
    write(tmp_path / "sweep" / "one", [row((0,), 0, 0, 0, {})], done=True)
    import_domainbed(tmp_path / "sweep", tmp_path / "store")
    (table,) = read_tables(tmp_path / "store", ["domain-cross-validation"])
    assert len(table.needed) == 2 and not table.grid().commands
    assert any(note.endswith("draw 0): run them there and import again.") for note in table.notes())
