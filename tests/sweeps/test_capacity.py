"""How many jobs share a GPU."""

import json

import pytest
import torch

from shiftbed.errors import AlgorithmError
from shiftbed.sweeps import pool as room
from shiftbed.sweeps.capacity import Capacity, Memory, is_out_of_memory
from shiftbed.sweeps.plan import Request, plan
from shiftbed.sweeps.pool import LocalPool
from shiftbed.training.device import Runtime
from shiftbed.training.store import LocalStore

GPU, OTHER = Runtime("cuda:0"), Runtime("cuda:1")
GIB = 2**30


def test_a_gpu_begins_with_one_job_and_then_has_as_many_as_fit():
    capacity = Capacity(4)
    assert (capacity.of(GPU), capacity.of(Runtime())) == (1, 4)
    capacity.saw(GPU, Memory(10 * GIB, 40 * GIB))
    assert (capacity.of(GPU), capacity.of(OTHER)) == (3, 1), "nine tenths of 40 GiB hold three jobs of 10"
    capacity.saw(GPU, Memory(1 * GIB, 40 * GIB))
    assert capacity.of(GPU) == 3, "a small job does not make room for large ones"
    capacity.saw(OTHER, Memory(1 * GIB, 40 * GIB))
    assert capacity.of(OTHER) == 4, "never more than the most"
    capacity.saw(OTHER, Memory(39 * GIB, 40 * GIB))
    assert capacity.of(OTHER) == 1


def test_a_stated_number_is_not_measured():
    capacity = Capacity(3, measured=False)
    capacity.saw(GPU, Memory(39 * GIB, 40 * GIB))
    assert capacity.of(GPU) == 3


def test_where_memory_ran_out_there_is_one_fewer_from_then_on():
    capacity = Capacity(4, measured=False)
    capacity.ran_out(GPU, crowd=4)
    capacity.ran_out(GPU, crowd=4)
    assert capacity.of(GPU) == 3, "two of four that ran out at once say the same"
    capacity.ran_out(GPU, crowd=2)
    assert (capacity.of(GPU), capacity.of(OTHER)) == (1, 4)


def test_out_of_memory_is_known_also_behind_a_sentence():
    sentence = AlgorithmError("too large")
    sentence.__cause__ = torch.OutOfMemoryError()
    assert is_out_of_memory(torch.OutOfMemoryError()) and is_out_of_memory(sentence)
    assert not is_out_of_memory(AlgorithmError("something else"))


class FakeServer:
    """Workers on a GPU with room for so many jobs, that answer at once."""

    def __init__(self, room):
        self.workers, self.most, self.room = [], 0, room

    def fork(self, **arguments):
        self.workers.append(FakeWorker(self))
        self.most = max(self.most, self.alive)
        return self.workers[-1]

    @property
    def alive(self):
        return sum(not worker.closed for worker in self.workers)

    def close(self):
        pass


class FakeWorker:
    def __init__(self, server):
        self.server, self.closed, self.messages = server, False, []

    def send_bytes(self, data):
        job = json.loads(data)["id"]
        self.messages.append({"event": "memory", "bytes": [10, 45]})
        if self.server.alive > self.server.room:
            self.messages.append({"event": "failed", "id": job, "why": "too large", "out_of_memory": True})
        else:
            self.messages.append({"event": "ended", "id": job, "outcome": "done"})

    def recv_bytes(self):
        return json.dumps(self.messages.pop(0)).encode()

    def close(self):
        self.closed = True


@pytest.mark.parametrize("measured", [True, False])
def test_a_pool_finishes_all_jobs_with_fewer_at_once_where_memory_runs_out(tmp_path, monkeypatch, measured):
    pool, server, progress = run_on_gpu(tmp_path, monkeypatch, Capacity(4, measured), room_for=2)
    assert len(progress.ended) == 8 and not progress.failed
    assert server.most == 4
    assert pool._capacity.of(GPU) == 2 and server.alive == 0


def test_a_job_that_does_not_fit_alone_has_failed(tmp_path, monkeypatch):
    pool, _, progress = run_on_gpu(tmp_path, monkeypatch, Capacity(4), room_for=0)
    assert set(progress.failed.values()) == {"too large"} and len(progress.failed) == 8
    assert pool._capacity.of(GPU) == 1


def test_a_worker_whose_job_failed_on_a_gpu_is_replaced(tmp_path, monkeypatch):
    _, server, progress = run_on_gpu(tmp_path, monkeypatch, Capacity(1, measured=False), room_for=0)
    assert len(server.workers) == len(progress.failed) == 8


def run_on_gpu(folder, monkeypatch, capacity, room_for):
    server = FakeServer(room_for)
    monkeypatch.setattr(room, "ForkServer", lambda: server)
    monkeypatch.setattr(room, "wait", lambda connections, timeout: [one for one in connections if one.messages])
    monkeypatch.setattr(room, "STOP_SECONDS", 0.0)
    pool = LocalPool(LocalStore(folder), 4, runtimes=[GPU], capacity=capacity)
    return pool, server, pool.run(plan(Request("ColoredDigits", ["ERM", "IRM"], draws=4, test_domains=["-90%"])))
