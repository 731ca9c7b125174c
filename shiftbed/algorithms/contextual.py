"""Algorithms whose prediction looks at the other images of a batch, which come from one domain."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from shiftbed import networks
from shiftbed.algorithms.base import ERM, Metrics, register
from shiftbed.algorithms.batches import Batches
from shiftbed.hparams import SizeClass, Space, choice, constant


def arm_space(dataset: str, size_class: SizeClass) -> Space:
    """Small groups on large datasets, as DomainBed fixes them; elsewhere the batch size is drawn as for all."""
    return Space(batch_size=constant(8)) if size_class == "large" else Space()


@register(space=arm_space, paper="Zhang et al., 2020", needs=("images", "test batches"), capturable=True)
class ARM(ERM):
    """Shows the network, as one more channel, the mean context of the images that come with an image.

    In training an image's group is the minibatch of its domain; at test time it is `batch_size` consecutive images, or
    the whole batch where that does not divide it.

    Departures from the paper, as in DomainBed: the context is one channel, where the authors' code has several. From
    DomainBed: the context network is trained (there it is made after the optimizer, which never sees it); in training
    groups are domains whatever their sizes and `batch_size` (there groups of `batch_size` across domains, or one); it
    sees images in [0, 1], which a pretrained network behind it then normalises itself.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        channels, *size = input_shape
        super().__init__((channels + 1, *size), num_classes, num_domains, hparams)
        self.context_net = networks.ContextNet(input_shape)
        self.optimizer = self.make_optimizer()

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Mean cross-entropy of images with the mean context of their domain's minibatch."""
        context = batches.mean(self.context_net(batches.x))[batches.domains]
        return F.cross_entropy(self.network(torch.cat([batches.x, context], 1)), batches.y), {}

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of images with the mean context of their group."""
        size = self.hparams["batch_size"]
        groups = len(x) // size if len(x) % size == 0 else 1
        context = self.context_net(x).unflatten(0, (groups, -1)).mean(1)
        return self.network(torch.cat([x, context.repeat_interleave(len(x) // groups, 0)], 1))


@register(
    space=Space(mtl_ema=choice(0.5, 0.9, 0.99, 1.0, default=0.99)),
    paper="Blanchard et al., 2021",
    needs=("domain labels", "test batches"),
    capturable=True,
)
class MTL(ERM):
    """Tells the classifier the mean feature of the domain, beside the image's own.

    Departures from the paper, as in DomainBed: the mean of a network's features takes the place of a kernel mean
    embedding, and in training it is a moving average, in which the new mean has the weight `mtl_ema`; risks are summed
    over domains. From DomainBed: noise does not overwrite the embedding, in training or at test time; all domains go
    through the network in one forward, and so share the statistics of live batch norm.

    Attributes:
        embeddings: The mean feature of each training domain.
    """

    share_hparams = ("mtl_ema",)
    embeddings: torch.Tensor

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        width = self.featurizer.n_outputs
        del self.network  # the classifier sees more than features
        self.classifier = networks.Classifier(2 * width, num_classes, self.hparams.get("nonlinear_classifier", False))
        self.register_buffer("embeddings", torch.zeros(num_domains, width))
        self.optimizer = self.make_optimizer()

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Sum over domains of the risk on features beside their domain's embedding, through which gradients flow."""
        features = self.featurizer(batches.x)
        new = self.hparams["mtl_ema"]
        embeddings = new * batches.mean(features) + (1 - new) * self.embeddings
        logits = self.classifier(torch.cat([features, embeddings[batches.domains]], 1))
        risks = batches.mean(F.cross_entropy(logits, batches.y, reduction="none"))
        return risks.sum(), {"embeddings": embeddings}

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of images of one domain, each beside the mean feature of the batch."""
        features = self.featurizer(x)
        return self.classifier(torch.cat([features, features.mean(0).expand_as(features)], 1))
