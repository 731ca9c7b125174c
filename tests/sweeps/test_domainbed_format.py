import json

import pytest

from shiftbed.errors import StoreError
from shiftbed.hashing import canonical
from shiftbed.selection import SELECTIONS
from shiftbed.sweeps.compaction import compact
from shiftbed.sweeps.domainbed_format import export_domainbed, import_domainbed
from shiftbed.sweeps.plan import Request, plan
from shiftbed.sweeps.records import Records, finished_jobs
from shiftbed.tables import read_tables
from shiftbed.training.files import JobFiles, Result
from shiftbed.training.store import LocalStore
from tests.audit.made_sweeps import write_sweep
from tests.sweeps.finished import finish
from tests.sweeps.test_compaction import finish_job

HPARAMS = {"lr": 5e-05, "batch_size": 32, "class_balanced": False}


def line(step, test_envs=(1,), seed=0, trial=0, envs=4, dataset="PACS", algorithm="ERM", **accuracies):
    """A record as DomainBed writes it; env i has (i + 1)/10 in and (i + 2)/10 out unless said otherwise."""
    row = {f"env{i}_{part}_acc": (i + 1 + j) / 10 for i in range(envs) for j, part in enumerate(("in", "out"))}
    args = {"algorithm": algorithm, "dataset": dataset, "test_envs": list(test_envs), "trial_seed": trial}
    args |= {"hparams_seed": seed, "hparams": None, "holdout_fraction": 0.2, "steps": 601, "checkpoint_freq": None}
    args |= {"data_dir": "/somewhere", "output_dir": "/else", "seed": 7}
    return {
        **row,
        **accuracies,
        "args": args,
        "hparams": HPARAMS,
        "step": step,
        "epoch": 0.1,
        "loss": 1.5,
        "step_time": 1,
    }


def write_run(folder, name, lines, done=True, tail=""):
    (folder / name).mkdir(parents=True)
    (folder / name / "results.jsonl").write_text(
        "".join(json.dumps(row, sort_keys=True) + "\n" for row in lines) + tail
    )
    if done:
        (folder / name / "done").write_text("done")


def test_a_run_becomes_a_job(tmp_path):
    write_run(tmp_path / "sweep", "run", [line(0), line(300, env1_in_acc=0.5), line(600)])
    found = import_domainbed(tmp_path / "sweep", tmp_path / "store")
    assert (found.jobs, found.notes()) == (1, [])
    (job,) = finished_jobs(LocalStore(tmp_path / "store"))
    about = job.description
    assert (about["dataset"], about["algorithm"], about["test_domains"]) == ("PACS", "ERM", ["cartoon"])
    assert (about["draw"], about["trial"], about["hparams"], about["recipe"]["steps"]) == (0, 0, HPARAMS, 601)
    assert about["recipe"]["evaluate_every"] == 300 and job.status == "done"
    assert [(split["name"], split["role"], split["count"]) for split in about["splits"][:4]] == [
        ("art_painting/in", "train", 1639),
        ("art_painting/out", "validation", 409),
        ("cartoon/in", "test", 1876),
        ("cartoon/out", "test", 468),
    ]
    assert [row["step"] for row in job.rows] == [1, 301, 601], "step s is after s + 1 updates"
    assert job.rows[1]["splits"]["cartoon/in"] == {"accuracy": 0.5, "count": 1876}
    assert job.rows[1]["splits"]["sketch/out"] == {"accuracy": 0.5, "count": 785}


def test_partial_runs_cut_lines_and_repeated_steps_are_told(tmp_path):
    sweep = tmp_path / "sweep"
    write_run(sweep, "partial", [line(0, seed=1)], done=False)
    write_run(sweep, "cut", [line(0, seed=2), line(300, seed=2)], tail='{"args": {"algo')
    again = [line(0, seed=3), line(300, seed=3), line(0, seed=3), line(300, seed=3, env1_in_acc=0.75)]
    write_run(sweep, "again", again)
    write_run(sweep, "empty", [])
    write_run(sweep, "odd", [{"step": 3}])
    write_run(sweep, "five", [line(0, envs=5)])
    found = import_domainbed(sweep, tmp_path / "store")
    assert (found.jobs, found.partial, found.cut, found.repeated) == (2, ["partial"], ["cut"], ["again"])
    assert set(found.unreadable) == {"empty", "odd", "five"}
    assert "it has 5 environments, and PACS has 4 domains" in found.unreadable["five"]
    assert len(found.notes()) == 6
    rows = {job.description["draw"]: job.rows for job in finished_jobs(LocalStore(tmp_path / "store"))}
    assert [row["step"] for row in rows[3]] == [1, 301] and rows[3][1]["splits"]["cartoon/in"]["accuracy"] == 0.75
    assert import_domainbed(sweep, tmp_path / "all", partial=True).jobs == 3


def test_partial_runs_are_in_the_table_of_finished_ones_and_never_stale(tmp_path):
    def unnamed(*words, **more):
        row = line(*words, **more)
        row["args"]["steps"] = None
        return row

    sweep, store = tmp_path / "sweep", tmp_path / "store"
    for test in range(4):
        write_run(sweep, f"whole-{test}", [unnamed(step, test_envs=(test,)) for step in (0, 300, 600)])
        write_run(sweep, f"part-{test}", [unnamed(0, test_envs=(test,), trial=1)], done=False)
    assert import_domainbed(sweep, store, partial=True).jobs == 8
    assert len(read_tables(store, ["training-domain-validation"])) == 1
    (sweep / "part-0" / "results.jsonl").write_text(
        "".join(json.dumps(unnamed(step, test_envs=(0,), trial=1)) + "\n" for step in (0, 300, 600))
    )
    with pytest.raises(StoreError, match=r"1 of these runs are in .* as they were before"):
        import_domainbed(sweep, store, partial=True)


def test_the_job_does_not_depend_on_where_it_ran_and_comes_once(tmp_path):
    moved = line(0)
    moved["args"]["data_dir"] = moved["args"]["output_dir"] = "/other"
    write_run(tmp_path / "sweep", "one", [line(0)])
    write_run(tmp_path / "sweep", "other", [moved])
    found = import_domainbed(tmp_path / "sweep", tmp_path / "store")
    assert (found.jobs, found.doubled) == (1, ["one"]) and "1 run left out" in found.notes()[0]
    import_domainbed(tmp_path / "sweep", tmp_path / "store")
    assert len(list(finished_jobs(LocalStore(tmp_path / "store")))) == 1


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_an_interrupted_run_never_stands_for_the_whole_one_of_the_same_job(tmp_path, names):
    whole, part = names
    write_run(tmp_path / "sweep", whole, [line(0), line(300), line(600)])
    write_run(tmp_path / "sweep", part, [line(0), line(300)], done=False)
    found = import_domainbed(tmp_path / "sweep", tmp_path / "store", partial=True)
    (job,) = finished_jobs(LocalStore(tmp_path / "store"))
    assert [row["step"] for row in job.rows] == [1, 301, 601] and found.doubled == [part]


def test_what_is_given_unlabelled_is_not_counted_as_tested_and_is_another_table(tmp_path):
    """DomainBed takes the share from what is not held out."""
    photo = line(0, test_envs=(2,))
    photo["args"] |= {"uda_holdout_fraction": 0.5, "task": "domain_adaptation"}
    write_run(tmp_path / "sweep", "plain", [line(0, test_envs=(2,))])
    write_run(tmp_path / "sweep", "photo", [photo])
    import_domainbed(tmp_path / "sweep", tmp_path / "store")
    plain, adapted = sorted(
        finished_jobs(LocalStore(tmp_path / "store")), key=lambda job: job.description["task"]["adapt"]
    )
    assert adapted.description["setting"] != plain.description["setting"]
    # PACS has 1,670 photos: 334 are held out, and half of the other 1,336 given.
    counts = [{split["name"]: split["count"] for split in job.description["splits"]} for job in (plain, adapted)]
    assert [(one["photo/in"], one["photo/out"], one["sketch/in"]) for one in counts] == [
        (1336, 334, 3144),
        (668, 334, 3144),
    ]
    assert adapted.description["task"]["adapt"] == 0.4, "of the whole domain, as everywhere here"
    assert export_domainbed(tmp_path / "store", tmp_path / "out").left_out == [adapted.id]


def test_an_export_says_what_domainbed_s_scripts_would_mix(tmp_path):
    longer = line(0, seed=1)
    longer["args"]["steps"] = 1201
    write_run(tmp_path / "sweep", "one", [line(0), line(600)])
    write_run(tmp_path / "sweep", "pair", [line(0, test_envs=(0, 1))])
    import_domainbed(tmp_path / "sweep", tmp_path / "store")
    assert export_domainbed(tmp_path / "store", tmp_path / "out").notes() == [], "pairs are for cross-validation"
    write_run(tmp_path / "sweep", "longer", [longer])
    import_domainbed(tmp_path / "sweep", tmp_path / "store")
    (said,) = export_domainbed(tmp_path / "store", tmp_path / "out").notes()
    assert "as if they were one: ERM on PACS; export" in said


def test_selections_and_tables_read_it(tmp_path):
    """Draw 1 validates best at its first step, draw 0 is best on the test domain."""
    for test in range(4):
        for seed, (validation, result) in enumerate([((0.5, 0.6), (0.8, 0.9)), ((0.7, 0.4), (0.3, 0.2))]):
            accuracies = [
                {f"env{i}_out_acc": value for i in range(4)} | {f"env{test}_in_acc": shown, f"env{test}_out_acc": shown}
                for value, shown in zip(validation, result, strict=True)
            ]
            rows = [line(300 * i, (test,), seed, **some) for i, some in enumerate(accuracies)]
            write_run(tmp_path / "sweep", f"{test}-{seed}", rows)
    import_domainbed(tmp_path / "sweep", tmp_path / "store")
    with Records(LocalStore(tmp_path / "store")) as records:
        tasks = records.tasks(["accuracy", "count"])
    assert len(tasks) == 4
    for name, expected in (("training-domain-validation", (1, 1)), ("oracle", (0, 301))):
        for task in tasks:
            (choice,) = SELECTIONS[name].choices(task).values()
            assert (choice.draw, choice.step) == expected
    assert len(read_tables(tmp_path / "store", ["training-domain-validation"])) == 1


def test_a_dataset_without_a_card_has_numbered_domains_and_the_least_counts(tmp_path):
    rows = [line(0, dataset="Mine", envs=2, env0_in_acc=1 / 3, env0_out_acc=0.25), line(300, dataset="Mine", envs=2)]
    write_run(tmp_path / "sweep", "run", rows)
    found = import_domainbed(tmp_path / "sweep", tmp_path / "store")
    assert found.guessed == {"Mine"} and "No card says how many images Mine has" in found.notes()[0]
    (job,) = finished_jobs(LocalStore(tmp_path / "store"))
    assert [(split["name"], split["count"]) for split in job.description["splits"]] == [
        ("env0/in", 30),  # a third and a tenth
        ("env0/out", 20),  # a quarter and a fifth
        ("env1/in", 5),
        ("env1/out", 10),
    ]


def test_what_is_exported_is_what_was_imported(tmp_path):
    for seed in range(3):
        write_run(tmp_path / "sweep", f"run{seed}", [line(0, seed=seed), line(300, seed=seed)])
    import_domainbed(tmp_path / "sweep", tmp_path / "store")
    assert export_domainbed(tmp_path / "store", tmp_path / "out").jobs == 3
    for path in (tmp_path / "out").glob("*/results.jsonl"):
        assert (path.parent / "done").exists()
        rows = [json.loads(text) for text in path.read_text().splitlines()]
        original = [line(0, seed=rows[0]["args"]["hparams_seed"]), line(300, seed=rows[0]["args"]["hparams_seed"])]
        for row, before in zip(rows, original, strict=True):
            names = {"step", "hparams", *(name for name in before if name.endswith("_acc"))}
            assert {name: row[name] for name in names} == {name: before[name] for name in names}
            for name in (
                "algorithm",
                "dataset",
                "test_envs",
                "trial_seed",
                "hparams_seed",
                "holdout_fraction",
                "steps",
            ):
                assert row["args"][name] == before["args"][name]


@pytest.mark.parametrize("task", [{"whole": True}, {"adapt": 0.3}, {"grouped": True}])
def test_tasks_that_domainbed_has_not_are_left_out_of_an_export(tmp_path, task):
    store = LocalStore(tmp_path / "store")
    finish_job(store, 0)
    (path,) = (tmp_path / "store").glob("jobs/*/job.json")
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, "task": {**about["task"], **task}}))
    done = export_domainbed(store.root, tmp_path / "out")
    assert (done.jobs, done.left_out) == (0, [f"{0:020x}"])


def test_our_jobs_are_exported(tmp_path):
    store = LocalStore(tmp_path / "store")
    finish_job(store, 0)
    finish_job(store, 1, status="diverged")
    for path in (tmp_path / "store").glob("jobs/*/job.json"):
        about = json.loads(path.read_text())
        about["recipe"]["holdout"] = 0.2
        path.write_text(json.dumps(about))
    compact(store)
    done = export_domainbed(store.root, tmp_path / "out")
    assert (done.jobs, done.left_out) == (1, [f"{1:020x}"]) and "1 job left out, since" in done.notes()[0]
    first = json.loads((tmp_path / "out" / f"{0:020x}" / "results.jsonl").read_text().splitlines()[0])
    assert first["step"] == 99 and {name for name in first if name.endswith("_acc")} == {
        "env0_in_acc",
        "env0_out_acc",
        "env1_out_acc",
    }


def test_lean_jobs_without_a_held_out_part_are_left_out_of_an_export(tmp_path):
    """DomainBed's scripts count domains up to the first without one, and would validate on those before it."""
    (job,) = plan(Request("ColoredDigits", ["ERM"], test_domains=["+90%"]))
    finish(LocalStore(tmp_path / "full"), job)
    splits = {f"{name}/out": {"accuracy": 0.5, "count": 1} for name in ("+80%", "-90%")}
    lean = LocalStore(tmp_path / "lean")
    lean.put_atomic(JobFiles(job.id).job, canonical(job.describe()))
    Result.of("done", job.recipe.steps, [{"step": job.recipe.steps, "splits": splits}], []).write(lean, job.id)
    assert export_domainbed(tmp_path / "full", tmp_path / "whole").jobs == 1
    done = export_domainbed(lean.root, tmp_path / "out")
    assert (done.jobs, done.left_out) == (0, [job.id]) and "lean records are without" in done.notes()[0]


def test_there_and_back_the_same_is_chosen_but_where_the_export_says_so(tmp_path):
    write_sweep(tmp_path / "ours", algorithms=("ERM",), draws=20, spread=0.005)
    (note,) = export_domainbed(tmp_path / "ours", tmp_path / "theirs").notes()
    assert "selections that read half_accuracy, loss choose nothing" in note and "oracle-laplace may" in note
    import_domainbed(tmp_path / "theirs", tmp_path / "back")

    def choices(folder):
        with Records(LocalStore(folder)) as records:
            tasks = records.tasks(["accuracy", "count", "loss", "half_accuracy"])
        return {
            name: [
                (task.tested, cell.trial, choice.draw, choice.step)
                for task in tasks
                for cell, choice in SELECTIONS[name].choices(task).items()
            ]
            for name in SELECTIONS
        }

    ours, back = choices(tmp_path / "ours"), choices(tmp_path / "back")
    assert {name for name in SELECTIONS if not back[name] and ours[name]} == {"validation-loss", "oracle-thresholdout"}
    assert {name for name in SELECTIONS if back[name] not in ([], ours[name])} == {"oracle-laplace"}


def test_an_empty_folder_is_one_sentence(tmp_path):
    with pytest.raises(StoreError, match=r"There is no \*/results\.jsonl in"):
        import_domainbed(tmp_path, tmp_path / "store")
    with pytest.raises(StoreError, match="There is no finished job"):
        export_domainbed(tmp_path, tmp_path / "out")
