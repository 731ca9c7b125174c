"""Replaying a step as a CUDA graph: one launch instead of hundreds."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from shiftbed.algorithms import Algorithm
from shiftbed.algorithms.draws import Tape

WARM_UP = 3  # real steps of each phase that run plainly first: they fill optimizer states and choose kernels


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
    metrics: dict[str, Any] = field(default_factory=dict)


class CapturedStep:
    """A step that runs plainly at first and is then replayed, once captured for each phase of the algorithm.

    The warm-up steps, the captured one and all replays are steps of the training: nothing is done twice.

    Args:
        algorithm: Whose step it is.
        step: Makes one from tensors on the GPU. It must branch on no value, and draw on the host by `drawn` alone.
    """

    def __init__(self, algorithm: Algorithm, step: Callable[..., dict[str, Any]]) -> None:
        self._algorithm = algorithm
        self._step = step
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()  # phases are never replayed at once, and leave each other nothing
        self._inputs: tuple[torch.Tensor, ...] = ()
        self._phases: dict[Hashable, Phase] = {}
        self.replays = False

    def __call__(self, phase: Hashable, *inputs: torch.Tensor) -> dict[str, Any]:
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
            with now.tape.fixed(), torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                now.metrics = self._step(*self._inputs)
            now.graph = graph
        now.graph.replay()
        return now.metrics

    def _beside(self, step: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Runs on the stream that will capture, so that its memory and kernels are the same."""
        self._stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self._stream):
                return step()
        finally:  # also where memory ran out, after which steps go on without this stream
            torch.cuda.current_stream().wait_stream(self._stream)
