"""Replaying a step as a CUDA graph: one launch instead of hundreds."""

import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from shiftbed.algorithms import Algorithm, Batches
from shiftbed.algorithms.draws import Tape

Metrics = dict[str, Any]
WARM_UP = 3  # real steps of each phase that run plainly first: they fill optimizer states and choose kernels


def fixed_size(x: torch.Tensor) -> None:
    """Has networks compiled for the size of this batch: kernels for any size are a quarter slower."""
    torch._dynamo.mark_static(x, 0)


@contextmanager
def no_collection() -> Iterator[None]:
    """Keeps the graphs of earlier jobs, which refer to themselves, from being freed while another one is captured."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@dataclass
class Phase:
    """Steps of the same arithmetic.

    Attributes:
        plain_steps: How many of them ran plainly.
        tape: What the host draws for one.
        graph: The captured one.
        metrics: What it says of itself, in tensors that every replay fills.
    """

    plain_steps: int = 0
    tape: Tape = field(default_factory=Tape)
    graph: torch.cuda.CUDAGraph | None = None
    metrics: Metrics = field(default_factory=dict)


class CapturedUpdate:
    """The update of an algorithm inside a wrapper, which goes on in Python around it.

    Args:
        algorithm: The algorithm inside.
        sizes: The number of examples of each domain, the same at every step.
    """

    def __init__(self, algorithm: Algorithm, sizes: Sequence[int]) -> None:
        self._algorithm = algorithm
        plain = algorithm.update

        def update(x: torch.Tensor, y: torch.Tensor, positions: torch.Tensor, *unlabeled: torch.Tensor) -> Metrics:
            fixed_size(x)
            return plain(Batches(x, y, sizes, positions), list(unlabeled) or None)

        self.step = CapturedStep(algorithm, update)

    def __call__(self, minibatches: Batches, unlabeled: Sequence[torch.Tensor] | None = None) -> Metrics:
        """As of any algorithm."""
        now, positions = self._algorithm.step, minibatches.positions
        assert positions is not None  # the engine made these minibatches
        metrics = self.step(self._algorithm.phase(now), minibatches.x, minibatches.y, positions, *(unlabeled or ()))
        self._algorithm.step = now + 1  # a replay runs no Python
        return metrics


class CapturedStep:
    """A step that runs plainly at first and is then replayed, once captured for each phase of the algorithm.

    The warm-up steps, the captured one and all replays are steps of the training: nothing is done twice.

    Args:
        algorithm: Whose step it is.
        step: Makes one from tensors on the GPU. It must branch on no value, and draw on the host by `drawn` alone.
    """

    def __init__(self, algorithm: Algorithm, step: Callable[..., Metrics]) -> None:
        self._algorithm = algorithm
        self._step = step
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()  # phases are never replayed at once, and leave each other nothing
        self._inputs: tuple[torch.Tensor, ...] = ()
        self._phases: dict[Hashable, Phase] = {}
        self.replays = False

    def __call__(self, phase: Hashable, *inputs: torch.Tensor) -> Metrics:
        """Makes one step; `replays` then says whether it was a replay.

        Args:
            phase: What the algorithm's arithmetic depends on at this step.
            *inputs: The step's tensors, of the same shapes every time.
        """
        now = self._phases.setdefault(phase, Phase())
        self._algorithm.tape = now.tape
        self.replays = now.plain_steps >= WARM_UP
        if not self.replays:
            now.plain_steps += 1
            now.tape.erase()
            return self._beside(lambda: self._step(*inputs))
        if not self._inputs:
            self._inputs = tuple(tensor.clone() for tensor in inputs)
        else:
            for own, given in zip(self._inputs, inputs, strict=True):
                own.copy_(given)
        now.tape.draw(self._algorithm.rng)
        if now.graph is None:
            self._algorithm.zero_grad()  # a replay would add to gradients left over, in memory that is no longer theirs
            graph = torch.cuda.CUDAGraph()
            with now.tape.fixed(), no_collection(), torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                now.metrics = self._step(*self._inputs)
            now.graph = graph
        now.graph.replay()
        return now.metrics

    def _beside(self, step: Callable[[], Metrics]) -> Metrics:
        """Runs on the stream that will capture, so that its memory and kernels are the same."""
        self._stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self._stream):
                return step()
        finally:  # also where memory ran out, after which steps go on without this stream
            torch.cuda.current_stream().wait_stream(self._stream)
