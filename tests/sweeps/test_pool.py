"""The local pool: workers that die, fail or sleep, and launchers that share a folder."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shiftbed.errors import ShiftbedError
from shiftbed.sweeps.forkserver import ForkServer
from shiftbed.sweeps.leases import Lease, LeaseWatch
from shiftbed.sweeps.plan import Request, plan, remember_plan
from shiftbed.sweeps.pool import LocalPool
from shiftbed.sweeps.records import finished_jobs, sweep_status
from shiftbed.sweeps.verbs import sweep
from shiftbed.tables import as_csv, as_text, read_tables
from shiftbed.training.run import JobFiles
from shiftbed.training.store import LocalStore

REQUEST = Request(
    ["ColoredDigits"],
    ["ERM", "IRM", "Mixup"],
    draws=2,
    trials=2,
    test_domains=["-90%"],
    fields={"steps": 120},
)
ARGUMENTS = "ColoredDigits --algorithms ERM,IRM,Mixup --draws 2 --trials 2 --test=-90% --steps 120".split()  # noqa: SIM905


def tables_of(folder) -> str:
    found = read_tables(folder)
    return as_csv(found) + "\n".join(as_text(table) for table in found)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The tables of the request, run with nothing going wrong."""
    folder = tmp_path_factory.mktemp("undisturbed")
    progress = LocalPool(LocalStore(folder), 2).run(plan(REQUEST))
    assert list(progress.ended.values()) == ["done"] * 12 and progress.deaths == 0
    return tables_of(folder)


def holders(folder: Path) -> list[int]:
    """The processes that have started a job and not ended it, as their leases say."""
    claims = []
    for path in folder.glob("jobs/*/lease.json"):
        claims.append(json.loads(path.read_text() or "{}"))
    return [claim["pid"] for claim in claims if claim]


def signal_if_alive(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def launch(folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "shiftbed", "sweep", *ARGUMENTS, "--out", str(folder), "--workers", "2"]
    # A shell has what it starts in the background ignore Ctrl-C, and that is inherited: here it counts again.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    finally:
        signal.signal(signal.SIGINT, before)


def test_two_launchers_with_workers_killed_and_put_to_sleep(tmp_path, undisturbed):
    """Each job is done once and the tables are the same to the byte."""
    chance = random.Random(0)
    launchers = [launch(tmp_path), launch(tmp_path)]
    first_done: dict[Path, tuple[int, int]] = {}
    asleep: list[tuple[float, int]] = []
    kills = sleeps = 0
    deadline = time.monotonic() + 120
    try:
        while any(launcher.poll() is None for launcher in launchers) and time.monotonic() < deadline:
            time.sleep(0.15)
            for path in tmp_path.glob("jobs/*/done.json"):
                seen = (path.stat().st_ino, path.stat().st_mtime_ns)
                assert first_done.setdefault(path, seen) == seen, "a finished job was written again"
            while asleep and time.monotonic() > asleep[0][0]:
                signal_if_alive(asleep.pop(0)[1], signal.SIGCONT)
            working = [pid for pid in holders(tmp_path) if pid not in {sleeper for _, sleeper in asleep}]
            if not working or kills + sleeps >= 16:
                continue
            pid = chance.choice(working)
            if chance.random() < 0.6:
                kills += signal_if_alive(pid, signal.SIGKILL)
            elif signal_if_alive(pid, signal.SIGSTOP):
                sleeps += 1
                asleep.append((time.monotonic() + 1.0, pid))
    finally:
        for _, pid in asleep:
            signal_if_alive(pid, signal.SIGCONT)
        outputs = [launcher.communicate(timeout=60)[0] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], outputs
    assert kills >= 3 and sleeps >= 1, "nothing was disturbed"
    assert len(first_done) <= 12 and len(list(finished_jobs(LocalStore(tmp_path)))) == 12
    assert tables_of(tmp_path) == undisturbed


def test_a_killed_launcher_leaves_a_sweep_that_the_same_command_finishes(tmp_path, undisturbed):
    launcher = launch(tmp_path)
    while len(list(tmp_path.glob("jobs/*/done.json"))) < 3:
        assert launcher.poll() is None
        time.sleep(0.05)
    launcher.kill()
    launcher.communicate()
    again = launch(tmp_path)
    output = again.communicate(timeout=120)[0]
    assert again.returncode == 0, output
    assert tables_of(tmp_path) == undisturbed


def test_a_sleeper_that_wakes_after_others_have_finished_changes_nothing(tmp_path, undisturbed):
    launcher = launch(tmp_path)
    while len(holders(tmp_path)) < 2:
        assert launcher.poll() is None
        time.sleep(0.02)
    sleepers = [launcher.pid, *holders(tmp_path)]
    for pid in sleepers:
        os.kill(pid, signal.SIGSTOP)
    try:
        progress = LocalPool(LocalStore(tmp_path), 2, patience=1.0).run(plan(REQUEST))
        assert len(progress.ended) == 12
        results = {path: path.read_bytes() for path in tmp_path.glob("jobs/*/done.json")}
    finally:
        for pid in reversed(sleepers):
            os.kill(pid, signal.SIGCONT)
    output = launcher.communicate(timeout=60)[0]
    assert launcher.returncode == 0, output
    assert {path: path.read_bytes() for path in tmp_path.glob("jobs/*/done.json")} == results
    assert tables_of(tmp_path) == undisturbed


def test_ctrl_c_saves_and_says_how_to_continue(tmp_path):
    launcher = launch(tmp_path)
    while not holders(tmp_path):
        assert launcher.poll() is None
        time.sleep(0.05)
    launcher.send_signal(signal.SIGINT)
    output = launcher.communicate(timeout=20)[0]
    assert launcher.returncode == 130
    assert "nothing is lost" in output
    assert not [pid for pid in holders(tmp_path) if signal_if_alive(pid, 0)], "no worker is left"


def test_a_launcher_leaves_its_own_sleeping_worker_when_another_has_finished_the_job(tmp_path):
    jobs = plan(Request("ColoredDigits", "ERM", test_domains=["-90%"], fields={"steps": 2000}))
    command = [sys.executable, "-m", "shiftbed", "sweep", "ColoredDigits", "--algorithms", "ERM", "--test=-90%"]
    launcher = subprocess.Popen([*command, "--steps", "2000", "--out", str(tmp_path)], stdout=subprocess.DEVNULL)
    while not holders(tmp_path):
        assert launcher.poll() is None
        time.sleep(0.05)
    (sleeper,) = holders(tmp_path)
    os.kill(sleeper, signal.SIGSTOP)
    result = {"status": "done", "step": 2000, "records": []}  # as if another launcher had been faster
    LocalStore(tmp_path).create_exclusive(JobFiles(jobs[0].id).done, json.dumps(result).encode())
    assert launcher.wait(timeout=30) == 0
    assert not signal_if_alive(sleeper, 0)


def test_a_system_without_the_sockets_of_workers_gets_one_sentence(monkeypatch):
    def refuse(*_):
        raise OSError("Protocol not supported")

    monkeypatch.setattr("socket.socketpair", refuse)
    with pytest.raises(ShiftbedError, match="need Linux; here use `--on ray`"):
        ForkServer()


def test_code_that_only_workers_cannot_run_is_one_sentence(tmp_path):
    code = tmp_path / "mine.py"
    code.write_text("import multiprocessing, os\nassert 'PYTEST_ONLY' in os.environ, 'not here'\n" + FAILING)
    request = Request("ColoredDigits", "ERM", fields={"steps": 2})
    pool = LocalPool(LocalStore(tmp_path / "sweep"), 1, [code])
    with pytest.raises(ShiftbedError, match=r"Workers cannot start: .*mine\.py cannot be run: AssertionError"):
        pool.run(plan(request))


FAILING = """
from shiftbed.algorithms import ERM, Space, constant, register

@register(space=Space(fails=constant(True)))
class Sometimes(ERM):
    \"\"\"Fails or kills its process, as its hyperparameter says.\"\"\"

    def update(self, minibatches, unlabeled=None):
        if self.hparams["fails"]:
            raise RuntimeError("no luck")
        return super().update(minibatches)
"""


def test_a_failing_job_stops_no_other_and_is_tried_again(tmp_path):
    code = tmp_path / "mine.py"
    code.write_text(FAILING)
    command = [
        sys.executable,
        "-m",
        "shiftbed",
        "sweep",
        "ColoredDigits",
        "--algorithms",
        "Sometimes,ERM",
        "--test=-90%",
    ]
    command += ["--steps", "5", "--out", str(tmp_path / "sweep"), "--code", str(code)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "1 job done" in ended.stdout and "RuntimeError in mine.py line 10: no luck" in ended.stdout
    assert ended.stderr.splitlines()[-1] == "shiftbed: 1 job failed; the same command tries again."
    status = sweep_status(LocalStore(tmp_path / "sweep"))
    assert (status.count("done"), status.count("failed")) == (1, 1)
    code.write_text(FAILING.replace("constant(True)", "constant(False)"))
    assert subprocess.run(command, capture_output=True).returncode == 0


ALONE = "from shiftbed.algorithms import ERM, register\n\n@register()\nclass Alone(ERM): pass\n"


@pytest.mark.parametrize("given", [str, Path, lambda path: (one for one in [path])], ids=["text", "path", "generator"])
def test_workers_load_one_file_of_code_however_it_is_given(tmp_path, given):
    """`train` takes one name for a list of one; workers took its letters for files."""
    (tmp_path / "alone.py").write_text(ALONE)
    request = Request("ColoredDigits", "Alone", test_domains=["-90%"], fields={"steps": 1})
    progress = sweep(request, tmp_path / "s", workers=1, code=given(str(tmp_path / "alone.py")))
    assert [*progress.ended.values()] == ["done"] and not progress.failed
    again = sweep(request, tmp_path / "s", workers=1, only=progress.jobs[0].id)
    assert again.ended == progress.ended


FULL = """
import errno
from pathlib import Path
from shiftbed.algorithms import ERM, register
from shiftbed.training import store

real = store._write_temporary

def write(path, data):
    if path.name == "lease.json" and b"holder" in data:
        with open(Path(__file__).with_name("attempts"), "a") as file:
            file.write(path.parent.name + "\\n")
    if path.name == "done.json" and (Path(__file__).parent / "full").exists():
        raise OSError(errno.ENOSPC, "No space left on device")
    return real(path, data)

store._write_temporary = write

@register()
class Mine(ERM):
    \"\"\"ERM on a disk that fills.\"\"\"
"""


def test_a_full_disk_ends_a_sweep_in_one_sentence_and_the_same_command_goes_on(tmp_path):
    (tmp_path / "mine.py").write_text(FULL)
    (tmp_path / "full").touch()
    command = [sys.executable, "-m", "shiftbed", "sweep", "ColoredDigits", "--algorithms=Mine", "--test=-90%"]
    command += ["--draws=4", "--steps=5", "--workers=1", "--out=s", "--code=mine.py"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 1 and ended.stdout == ""
    (told,) = ended.stderr.splitlines()
    assert told.count("the disk is full; make room and run the same command again") == 1
    assert told.endswith("The sweep started no further job; 0 of 4 jobs have ended.")
    assert len({*(tmp_path / "attempts").read_text().split()}) == 1, "no second job was begun"
    status = sweep_status(LocalStore(tmp_path / "s"))
    assert (status.count("left"), status.failures) == (4, {}), "nothing is wrong with any of them"
    (tmp_path / "full").unlink()
    assert "4 jobs done." in subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout


@pytest.mark.parametrize(
    "found",
    [b"", b"{}", b"{", b"\xff", b"[]", b"[1]", b"7", b"null", b'"x"', b'{"pid": 1}', b'{"host": "a", "pid": null}'],
)
def test_a_file_that_is_no_claim_is_nobody_s(found, tmp_path):
    store = LocalStore(tmp_path)
    store.put_atomic(JobFiles("job").lease, found)
    watch = LeaseWatch(store)
    assert watch.moved("job") is None and not watch.held("job") and not watch.lives("job")


def test_leases_tell_the_living_from_the_dead(tmp_path, monkeypatch):
    store = LocalStore(tmp_path)
    watch = LeaseWatch(store, patience=0.3)
    assert not watch.held("job"), "nobody has it"
    lease = Lease(store, "job")
    lease.beat()
    assert watch.held("job"), "alive as far as anyone has seen"
    time.sleep(0.35)
    assert not watch.held("job"), "it has not moved"
    lease.beat()
    assert watch.held("job"), "it moves again"
    monkeypatch.setattr("shiftbed.sweeps.leases.BEAT_SECONDS", 0.02)
    with lease:
        for _ in range(3):  # whatever its holder does
            time.sleep(0.1)
            assert watch.moved("job")
    assert watch.moved("job") is None and not watch.held("job")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    claim = {"holder": "x", "count": 1, "host": os.uname().nodename, "pid": gone.pid}
    store.put_atomic(JobFiles("job").lease, json.dumps(claim).encode())
    assert not watch.held("job"), "its process is gone"
    store.put_atomic(JobFiles("job").lease, b"{torn")
    assert not watch.held("job")


def test_status_counts_what_is_done_and_left(tmp_path):
    store = LocalStore(tmp_path)
    jobs = plan(Request(["ColoredDigits"], ["ERM"], fields={"steps": 2}))
    remember_plan(jobs, store)
    assert sweep_status(store).count("left") == 3
    assert sweep_status(store).seconds_left is None
    LocalPool(store, 1).run(jobs[:2])
    status = sweep_status(store)
    assert (status.count("done"), status.count("left"), status.count("running")) == (2, 1, 0)
    assert status.seconds_left > 0
