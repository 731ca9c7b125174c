"""Replaying a step as a CUDA graph: one launch instead of hundreds."""

from collections.abc import Callable, Hashable
from typing import Any

import torch

WARM_UP = 3  # real steps of each phase that run plainly first: they fill optimizer states and choose kernels


class CapturedStep:
    """A step that runs plainly at first and is then replayed, once for each phase of the algorithm.

    The warm-up steps, the captured one and all replays are steps of the training: nothing is done twice.

    Args:
        step: Makes one step from tensors on the GPU; it must branch on no value and draw nothing on the host.
    """

    def __init__(self, step: Callable[..., dict[str, Any]]) -> None:
        self._step = step
        self._stream = torch.cuda.Stream()
        self._phase: Hashable = None
        self._plain_steps = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[torch.Tensor, ...] = ()
        self._metrics: dict[str, Any] = {}

    @property
    def replays(self) -> bool:
        """Whether the last step was a replay."""
        return self._graph is not None

    def __call__(self, phase: Hashable, *inputs: torch.Tensor) -> dict[str, Any]:
        """Makes one step.

        Args:
            phase: What the algorithm's arithmetic depends on at this step; another one is captured anew.
            *inputs: The step's tensors, of the same shapes every time.
        """
        if phase != self._phase:
            self._phase, self._plain_steps, self._graph = phase, 0, None
        if self._graph is None and self._plain_steps < WARM_UP:
            self._plain_steps += 1
            return self._beside(lambda: self._step(*inputs))
        if self._graph is None:
            self._inputs = tuple(tensor.clone() for tensor in inputs)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream):
                self._metrics = self._step(*self._inputs)
            self._graph = graph
        else:
            for own, given in zip(self._inputs, inputs, strict=True):
                own.copy_(given)
        self._graph.replay()
        return self._metrics

    def _beside(self, step: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Runs on the stream that will capture, so that its memory and kernels are the same."""
        self._stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self._stream):
                return step()
        finally:  # also where memory ran out, after which steps go on without this stream
            torch.cuda.current_stream().wait_stream(self._stream)
