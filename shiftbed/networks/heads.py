"""What stands after or beside a featurizer: the classifier, and ARM's context network."""

import torch
from torch import nn


def Classifier(in_features: int, out_features: int, is_nonlinear: bool = False) -> nn.Module:  # noqa: N802
    """The head: one linear layer, or three with ReLU between them."""
    if not is_nonlinear:
        return nn.Linear(in_features, out_features)
    return nn.Sequential(
        nn.Linear(in_features, in_features // 2),
        nn.ReLU(),
        nn.Linear(in_features // 2, in_features // 4),
        nn.ReLU(),
        nn.Linear(in_features // 4, out_features),
    )


class ContextNet(nn.Module):
    """ARM's context network: three 5×5 convolutions from an image to a map of one channel and the same size."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.context_net = nn.Sequential(
            nn.Conv2d(input_shape[0], 64, 5, padding=2),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Conv2d(64, 64, 5, padding=2),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Conv2d(64, 1, 5, padding=2),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One map per image."""
        return self.context_net(x)
