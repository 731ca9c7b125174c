"""The minibatches of one step."""

from collections.abc import Iterable, Iterator, Sequence

import torch


class Batches(Sequence[tuple[torch.Tensor, torch.Tensor]]):
    """One minibatch per training domain, held as one contiguous tensor.

    Iterates as `(x, y)` views, one per domain, as DomainBed's list of minibatches does; `x`, `y` and `sizes` give the
    whole, so that nothing is concatenated twice.

    Attributes:
        x: The inputs of all domains, one domain after the other.
        y: Their labels.
        sizes: The number of examples of each domain.
        positions: The place of each example in the training data, where the engine made the batches.
        unlabeled: Inputs of test domains without labels, one batch each; empty unless the task adapts.
    """

    def __init__(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        sizes: Sequence[int],
        positions: torch.Tensor | None = None,
        unlabeled: Sequence[torch.Tensor] = (),
    ) -> None:
        self.x = x
        self.y = y
        self.sizes = tuple(sizes)
        self.positions = positions
        self.unlabeled = tuple(unlabeled)

    @classmethod
    def of(
        cls,
        minibatches: "Batches | Iterable[tuple[torch.Tensor, torch.Tensor]]",
        unlabeled: Sequence[torch.Tensor] | None = None,
    ) -> "Batches":
        """The same minibatches as one whole; a plain list is concatenated."""
        if isinstance(minibatches, Batches) and not unlabeled:
            return minibatches
        if isinstance(minibatches, Batches):
            return cls(minibatches.x, minibatches.y, minibatches.sizes, minibatches.positions, unlabeled or ())
        xs, ys = zip(*minibatches, strict=True)
        return cls(torch.cat(xs), torch.cat(ys), [len(y) for y in ys], unlabeled=unlabeled or ())

    @property
    def domains(self) -> torch.Tensor:
        """The number of each example's domain."""
        numbers = [torch.full((size,), number, device=self.y.device) for number, size in enumerate(self.sizes)]
        return torch.cat(numbers)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # int or slice, as of any sequence
        return list(self)[index]

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return zip(self.split(self.x), self.split(self.y), strict=True)

    def split(self, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Values of all examples, as one view per domain."""
        return torch.split(values, list(self.sizes))

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """The mean over the examples of each domain: one row per domain."""
        if len(set(self.sizes)) == 1:
            return values.unflatten(0, (len(self), -1)).mean(1)
        return torch.stack([part.mean(0) for part in self.split(values)])
