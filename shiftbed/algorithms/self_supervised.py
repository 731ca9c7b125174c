"""Algorithms with a second task that needs no labels."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from shiftbed.algorithms.base import ERM, Metrics, register
from shiftbed.algorithms.batches import Batches
from shiftbed.hparams import Space, uniform


def _orders() -> np.ndarray:
    """The identity and 30 orders of nine tiles, of which no two agree in more than one place.

    Tile (row, column) is the element row + column·i of the field of nine elements, and an order is an affine map
    z → a·z + b of it: two of them agree in one place at most. Of more than nine orders no set can do better.
    """
    tiles = [complex(row, column) for row in range(3) for column in range(3)]
    images = [[a * z + b for z in tiles] for a in (1, 2, 1j, 2j) for b in tiles]
    return np.array([[int(z.real % 3) * 3 + int(z.imag % 3) for z in image] for image in images[:31]])


ORDERS = _orders()


def shuffle_tiles(x: torch.Tensor, orders: torch.Tensor) -> torch.Tensor:
    """Images cut in 3×3 tiles, with tile `orders[i, k]` of image i in place k.

    Where a side is no multiple of three, the last one or two rows or columns of pixels stay where they are.
    """
    height, width = (side // 3 for side in x.shape[2:])
    grid = x[..., : 3 * height, : 3 * width].unflatten(3, (3, width)).unflatten(2, (3, height))
    tiles = grid.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    tiles = tiles[torch.arange(len(x), device=x.device)[:, None], orders]
    shuffled = x.clone()
    area = tiles.unflatten(1, (3, 3)).permute(0, 3, 1, 4, 2, 5)
    shuffled[..., : 3 * height, : 3 * width] = area.flatten(4, 5).flatten(2, 3)
    return shuffled


@register(
    space=Space(jigen_alpha=uniform(0.1, 1.0, default=0.7), jigen_beta=uniform(0.5, 1.0, default=0.9)),
    paper="Carlucci et al., 2019",
    needs=("images",),
    capturable=True,
)
class JiGen(ERM):
    """Learns the classes together with the order of the tiles of shuffled images.

    With probability `jigen_beta` an image stays whole; otherwise its order is one of 31, the identity among them. As
    the paper says, whole images alone count for the classes (its published code counts shuffled ones too unless asked
    not to), and all images for the order.

    Departures from the paper: the 30 orders have the largest least distance that 30 can have, where a greedy search
    found the paper's; images keep their size (the paper's sides are multiples of three) and tiles keep their colours;
    the optimizer and its schedule are the recipe's (there SGD).
    """

    share_hparams = ("jigen_beta",)
    orders: torch.Tensor

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.jigsaw = nn.Linear(self.featurizer.n_outputs, len(ORDERS))
        self.register_buffer("orders", torch.from_numpy(ORDERS), persistent=False)
        self.optimizer = self.make_optimizer()

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Mean risk of the whole images plus alpha times the mean cross-entropy of all images' orders."""
        count = len(batches.y)

        def choose(rng: np.random.Generator) -> np.ndarray:
            chosen = rng.integers(len(ORDERS), size=count)
            chosen[rng.random(count) < self.hparams["jigen_beta"]] = 0
            return chosen

        chosen = self.drawn(choose)
        features = self.featurizer(shuffle_tiles(batches.x, self.orders[chosen]))
        losses = F.cross_entropy(self.classifier(features), batches.y, reduction="none")
        whole = (chosen == 0).to(losses.dtype)
        risk = (whole / whole.sum().clamp_min(1) * losses).sum()
        puzzle = F.cross_entropy(self.jigsaw(features), chosen)
        return risk + self.hparams["jigen_alpha"] * puzzle, {"risk": risk, "puzzle": puzzle}
