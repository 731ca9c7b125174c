"""The executors of clusters: the same jobs to the same bytes, whatever the scheduler does to them."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from shiftbed.algorithms import load_code
from shiftbed.errors import ShiftbedError
from shiftbed.sweeps.attempt import attempt_remotely
from shiftbed.sweeps.executors import MOST_DEATHS, ClusterExecutor, cluster_runtime, needed
from shiftbed.sweeps.leases import Lease, LeaseWatch
from shiftbed.sweeps.pool import LocalPool
from shiftbed.tables import as_csv, read_tables
from shiftbed.training.run import JobFiles, parse_records, run_job
from shiftbed.training.store import DiskFullError, LocalStore
from tests.conftest import tiny_job


def results_of(folder: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in folder.glob("jobs/*/done.json")}


def wait_for(condition, seconds: float = 180.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return found


def claim_on(store: LocalStore, job) -> dict:
    return json.loads(store.get(JobFiles(job.id).lease) or b"{}")


def rows_saved(store: LocalStore, job) -> int:
    return len(parse_records(store.get(JobFiles(job.id).records)))


class Scripted(ClusterExecutor):
    """A scheduler that does with each submission what a list says: run it, or let it die at a number of updates."""

    def __init__(self, store, script):
        super().__init__(store)
        self.script = script
        self.batches, self.queue = [], []
        self.dismissed = False

    def _submit(self, jobs):
        self.batches.append(len(jobs))
        self.queue = list(jobs)

    def _hear(self):
        heard, self.queue = self.queue, []
        for job in heard:
            act = self.script.get(job.id, []).pop(0) if self.script.get(job.id) else "run"
            if act == "run":
                yield job.id, {"event": "ended", "outcome": run_job(job, self._store)}
            elif act == "fail":
                yield job.id, {"event": "failed", "why": "no luck"}
            elif act == "full":
                yield job.id, {"event": "full", "why": "The disk is full."}
            else:
                updates = iter(range(act))
                run_job(job, self._store, should_stop=lambda updates=updates: next(updates, None) is None)
                yield job.id, {"event": "died", "why": "the node is gone"}

    def _dismiss(self):
        self.dismissed = True


def test_a_full_disk_ends_a_cluster_s_sweep_too(tmp_path):
    jobs = [tiny_job("ERM", draw=draw) for draw in range(3)]
    cluster = Scripted(LocalStore(tmp_path), {job.id: ["full"] for job in jobs})
    with pytest.raises(DiskFullError, match=r"^The disk is full. The sweep started no further job; 0 of 3 jobs"):
        cluster.run(jobs)
    assert cluster.dismissed and cluster.batches == [3]


def test_a_job_that_gets_further_each_time_is_tried_for_ever_and_one_that_does_not_is_given_up(tmp_path):
    store = LocalStore(tmp_path)
    moving, stuck, failing, fine = (tiny_job("ERM", trial=trial, steps=18) for trial in range(4))
    script = {moving.id: [3, 3, 3, 3, 3], stuck.id: [0] * 9, failing.id: ["fail"]}
    executor = Scripted(store, script)
    progress = executor.run([moving, stuck, failing, fine, fine])
    assert progress.ended == {moving.id: "done", fine.id: "done"}
    why = f"its process died {MOST_DEATHS} times at the same point (the node is gone)"
    assert progress.failed == {stuck.id: why, failing.id: "no luck"}
    assert json.loads(store.get(JobFiles(stuck.id).failure))["why"] == why
    assert progress.deaths == 5 + MOST_DEATHS and progress.left == 0 and executor.dismissed
    assert Scripted(store, {}).run([moving, fine]).found == 2


def test_a_job_that_runs_elsewhere_is_not_submitted_again(tmp_path, monkeypatch):
    monkeypatch.setattr("shiftbed.sweeps.executors.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("shiftbed.sweeps.leases.BEAT_SECONDS", 0.05)
    store, held, free = LocalStore(tmp_path), tiny_job("ERM", steps=1), tiny_job("ERM", trial=1, steps=1)
    executor, attempts = Scripted(store, {}), []

    def look(progress):
        if progress.state(free.id) == "done" and not attempts:
            assert progress.state(held.id) == "running"
            attempts.append(attempt_remotely(held.describe(), str(tmp_path), [], "none", {}, lambda: False))
            run_job(held, store)

    with Lease(store, held.id):
        assert executor.run([held, free], look).ended == {held.id: "done", free.id: "done"}
    assert executor.batches == [1], "the held one was never submitted"
    assert attempts == [{"event": "ended", "outcome": "stopped"}], "and, had it been, would have been left"
    assert not LeaseWatch(store).lives(held.id)


def test_many_jobs_are_submitted_in_batches_that_a_scheduler_accepts(tmp_path, monkeypatch):
    monkeypatch.setattr("shiftbed.sweeps.executors.MOST_SUBMITTED", 4)
    executor = Scripted(LocalStore(tmp_path), {})
    executor.run([tiny_job("ERM", trial=trial, steps=1) for trial in range(6)])
    assert executor.batches == [4, 2]


def test_what_is_missing_is_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(ShiftbedError, match=r"Sweeps on ray need `pip install 'shiftbed\[ray\]'`"):
        needed("no_such_module", "ray")
    with pytest.raises(ShiftbedError, match="use --device cuda or cpu, not 'cuda:1'"):
        cluster_runtime("cuda:1")
    assert cluster_runtime("cuda").on_gpu, "the launcher needs no GPU"
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'shiftbed[slurm]'")
    from shiftbed.sweeps.slurm_executor import SlurmExecutor

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ShiftbedError, match="There is no Slurm here"):
        SlurmExecutor(LocalStore(tmp_path))


@pytest.fixture
def slurm(monkeypatch):
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'shiftbed[slurm]'")
    from shiftbed.sweeps import slurm_executor

    monkeypatch.setattr(slurm_executor, "TICK_SECONDS", 0.1)
    return slurm_executor.SlurmExecutor


def test_ray_does_not_take_the_launcher_s_terminate_signal(tmp_path, monkeypatch):
    """Ray has a handler of its own, which aborts: a launcher must live to say that all is saved."""
    from shiftbed.sweeps.ray_executor import RayExecutor

    def init(**_):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    made = SimpleNamespace(is_initialized=lambda: False, init=init, remote=lambda **_: lambda run: run)
    monkeypatch.setitem(sys.modules, "ray", made)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        RayExecutor(LocalStore(tmp_path))
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


class Running(threading.Thread):
    """An executor's run in the background."""

    def __init__(self, executor, jobs):
        super().__init__(daemon=True)
        self.executor, self.jobs = executor, jobs
        self.start()

    def run(self):
        self.progress = self.executor.run(self.jobs)


@pytest.mark.slow
def test_slurm_preempted_a_job_saves_is_queued_again_and_continues(tmp_path, slurm):
    store = LocalStore(tmp_path / "slurm")
    job = tiny_job("IRM", steps=3000, every=300)
    running = Running(slurm(store, cluster="local"), [job])
    wait_for(lambda: store.get(JobFiles(job.id).checkpoint))
    time.sleep(0.2)  # on to some step between evaluations
    os.kill(claim_on(store, job)["pid"], signal.SIGUSR2)
    running.join(600)
    assert running.progress.ended == {job.id: "done"} and running.progress.deaths == 0, "Slurm itself queued it again"
    first, second = json.loads(store.get(JobFiles(job.id).times))
    assert first["steps"] < 3000 and first["steps"] % 300, "it saved where the signal came, not at an evaluation"
    assert first["steps"] + second["steps"] == 3000, "it continued at the step where it was stopped"
    LocalPool(LocalStore(tmp_path / "local"), 1).run([job])
    assert results_of(tmp_path / "slurm") == results_of(tmp_path / "local")


@pytest.mark.slow
def test_slurm_kills_and_failures_stop_no_other_job(tmp_path, slurm):
    code = tmp_path / "mine.py"
    code.write_text(FAILING)
    load_code(code)
    store = LocalStore(tmp_path / "sweep")
    killed, failing = tiny_job("ERM", steps=2500, every=100), tiny_job("Unlucky")
    running = Running(slurm(store, [code], cluster="local"), [killed, failing])
    wait_for(lambda: rows_saved(store, killed))
    os.kill(claim_on(store, killed)["pid"], signal.SIGKILL)
    running.join(600)
    assert running.progress.failed == {failing.id: "RuntimeError in mine.py line 9: no luck"}
    assert running.progress.ended == {killed.id: "done"} and running.progress.deaths == 1
    assert json.loads(store.get(JobFiles(failing.id).failure))["why"] == running.progress.failed[failing.id]


FAILING = """
from shiftbed.algorithms import ERM, register

@register()
class Unlucky(ERM):
    \"\"\"Fails.\"\"\"

    def update(self, minibatches, unlabeled=None):
        raise RuntimeError("no luck")
"""


@pytest.fixture
def ray_cluster():
    """A cluster of three nodes with one core each on this machine, which notices a dead node within seconds."""
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'shiftbed[ray]'")
    from ray.cluster_utils import Cluster

    memory = {"object_store_memory": 80 * 2**20}
    quick = {"health_check_period_ms": 500, "health_check_failure_threshold": 3, "health_check_timeout_ms": 1000}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, **memory, "include_dashboard": False, "_system_config": quick},
    )
    nodes = [cluster.add_node(num_cpus=1, **memory) for _ in range(2)]
    yield cluster, nodes
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.slow
def test_ray_loses_a_node_that_runs_a_job_and_the_sweep_finishes(tmp_path, ray_cluster):
    from shiftbed.sweeps.ray_executor import RayExecutor

    cluster, nodes = ray_cluster
    code = tmp_path / "mine.py"
    code.write_text(FAILING)
    load_code(code)
    store = LocalStore(tmp_path / "ray")
    jobs = [tiny_job(name, trial=trial, steps=2500, every=100) for name in ("ERM", "IRM") for trial in range(2)]
    failing = tiny_job("Unlucky")
    running = Running(RayExecutor(store, [code], address=cluster.address), [*jobs, failing])
    raylet = nodes[0].all_processes["raylet"][0].process.pid
    lost = wait_for(
        lambda: next((job for job in jobs if rows_saved(store, job) and runs_under(raylet, store, job)), None)
    )
    cluster.remove_node(nodes[0], allow_graceful=False)
    running.join(600)
    assert running.progress.failed == {failing.id: "RuntimeError in mine.py line 9: no luck"}
    assert running.progress.ended == {job.id: "done" for job in jobs}
    (times,) = json.loads(store.get(JobFiles(lost.id).times))
    assert times["steps"] < 2500, "the lost job continued from its checkpoint on another node"
    LocalPool(LocalStore(tmp_path / "local"), 2).run(jobs)
    assert results_of(tmp_path / "ray") == results_of(tmp_path / "local")
    assert as_csv(read_tables(tmp_path / "ray")) == as_csv(read_tables(tmp_path / "local"))


def runs_under(raylet: int, store: LocalStore, job) -> bool:
    """Whether the process that holds the job was started by this node."""
    stat = Path(f"/proc/{claim_on(store, job).get('pid')}/stat")
    return stat.exists() and int(stat.read_text().rsplit(")", 1)[1].split()[1]) == raylet
