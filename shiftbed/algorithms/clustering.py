"""Algorithms that find latent domains by clustering all training images."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from shiftbed import networks
from shiftbed.algorithms.base import ERM, Algorithm, Metrics, TrainingData, TrainingPlan, register
from shiftbed.algorithms.batches import Batches
from shiftbed.algorithms.numerics import ramp, reverse_gradient
from shiftbed.errors import AlgorithmError
from shiftbed.hparams import Space, choice, log_uniform

EPOCH_BATCH = 256
CHUNK = 4096  # rows at a time, so that no matrix of all points by all clusters is formed
FEW = 2**20  # numbers; so few are clustered on the host, where an iteration waits for no device


@torch.no_grad()
def of_all_images(
    algorithm: Algorithm, data: TrainingData, describe: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """What `describe` says of every training image, one row each, in evaluation mode."""
    mode = algorithm.training
    algorithm.eval()
    rows = torch.cat([at_least_float32(describe(x)) for x, _ in data.batches(EPOCH_BATCH)])
    algorithm.train(mode)
    return rows


def at_least_float32(values: torch.Tensor) -> torch.Tensor:
    """Half types in float32; others as they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def cluster_of(algorithm: Algorithm, batches: Batches, clusters: torch.Tensor) -> torch.Tensor:
    """The cluster of each example of the minibatches.

    Raises:
        AlgorithmError: No images were clustered, or the minibatches do not say which of them they hold.
    """
    if batches.positions is None or not len(clusters):
        raise AlgorithmError(
            f"{type(algorithm).__name__} clusters all training images: call start(plan) and epoch(data) before the "
            "first update, and give update() Batches with the positions of their examples in these data."
        )
    return clusters[batches.positions]


def nearest(points: torch.Tensor, centroids: torch.Tensor) -> torch.Tensor:
    """The number of the centroid nearest to each point."""
    lengths = centroids.square().sum(1)
    return torch.cat([(lengths - 2 * part @ centroids.T).argmin(1) for part in points.split(CHUNK)])


def group_means(points: torch.Tensor, groups: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of each group's points in float64 (0 for an empty one), and the groups' sizes.

    Sums are matrix products with the groups' indicators: adding rows by index has no fixed order on a GPU.
    """
    sums = torch.zeros(count, points.shape[1], dtype=torch.float64, device=points.device)
    for part, numbers in zip(points.split(CHUNK), groups.split(CHUNK), strict=True):
        sums += F.one_hot(numbers, count).double().T @ part.double()
    sizes = torch.bincount(groups, minlength=count)
    return sums / sizes.clamp(min=1)[:, None], sizes


def spread_start(points: torch.Tensor, count: int, rng: np.random.Generator) -> torch.Tensor:
    """Points to start from: each drawn with a chance proportional to the squared distance to the nearest before it."""
    chosen = [int(rng.integers(len(points)))]
    distances = torch.full((len(points),), math.inf, dtype=points.dtype, device=points.device)
    while len(chosen) < count:
        distances = torch.minimum(distances, (points - points[chosen[-1]]).square().sum(1))
        shares = distances.cpu().cumsum(0)  # on a GPU a cumulative sum is not always the same
        place = int(torch.searchsorted(shares, rng.random() * shares[-1], right=True))
        chosen.append(min(place, len(points) - 1))  # where all distances are 0, any point will do
    return points[chosen]


def kmeans(
    points: torch.Tensor, count: int, rng: np.random.Generator, *, restarts: int = 10, iterations: int = 300
) -> tuple[torch.Tensor, torch.Tensor]:
    """The centroids of the best of several runs of Lloyd's algorithm, and the cluster of each point (float64).

    A run ends when its centroids have almost stopped: when they moved by 1e-4 of the points' mean variance in all.
    """
    device = points.device
    points = points.cpu() if points.numel() < FEW else points
    best, least = points[:count], math.inf
    small = 1e-4 * points.var(0, correction=0).mean()
    for _ in range(restarts):
        centroids = spread_start(points, count, rng)
        for _ in range(iterations):
            means, sizes = group_means(points, nearest(points, centroids), count)
            before, centroids = centroids, torch.where(sizes[:, None] > 0, means, centroids)
            if (centroids - before).square().sum() <= small:
                break
        error = float((points - centroids[nearest(points, centroids)]).square().sum())
        if error < least:
            best, least = centroids, error
    return best.to(device), nearest(points, best).to(device)


def principal_axes(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The mean of points, their variances along principal axes (largest first), and these axes as columns (float64).

    Axes along which the points do not vary are left out.
    """
    centre = points.mean(0, dtype=torch.float64)
    covariance = torch.zeros(len(centre), len(centre), dtype=torch.float64, device=points.device)
    for part in points.split(CHUNK):
        centred = part - centre
        covariance += centred.T @ centred / len(points)
    variances, axes = torch.linalg.eigh(covariance)
    kept = variances > variances[-1] * 1e-7
    return centre, variances[kept].flip(0), axes[:, kept].flip(1)


def relabelled(clusters: torch.Tensor, before: torch.Tensor, count: int) -> torch.Tensor:
    """The same clusters, numbered so that as many images as possible keep the number they had before."""
    from scipy.optimize import linear_sum_assignment

    if len(before) != len(clusters):
        return clusters
    overlap = torch.bincount(clusters * count + before, minlength=count**2).view(count, count)
    _, numbers = linear_sum_assignment(overlap.cpu().numpy(), maximize=True)
    return torch.as_tensor(numbers, device=clusters.device)[clusters]


@register(
    space=Space(
        mmld_clusters=choice(2, 3, 4, default=3),
        mmld_adversary=log_uniform(1e-1, 1e1, default=1.0),
        mmld_entropy=log_uniform(1e-1, 1e1, default=1.0),
    ),
    paper="Matsuura and Harada, 2020",
    needs=("images", "feature maps"),
)
class MMLD(ERM):
    """Clusters images by their style and makes the features say nothing of the cluster.

    At every epoch all training images are clustered by the channel means and deviations of the first two stages' maps;
    a discriminator then learns to tell the cluster, and its reversed gradient trains the featurizer, which also learns
    to give certain predictions. The weights of both grow from 0 in the first epoch.

    Departures from the paper: one optimizer with one learning rate trains everything, as the recipe says (there SGD,
    with 10 times the rate for the last layer and the discriminator); the recipe augments images, not the algorithm.
    Deviations are those of all pixels of a map, without the correction for small samples: a map may have one pixel.

    Attributes:
        clusters: The cluster of every training image.
        cluster_weights: What an image counts for the discriminator: as much in all for every cluster.
        weight: How far the ramp has come in this epoch.
    """

    positive_hparams = ("mmld_clusters",)
    recomputable = False  # stages that are computed twice call no hooks
    clusters: torch.Tensor
    cluster_weights: torch.Tensor

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        count = self.hparams["mmld_clusters"]
        self.discriminator = nn.Sequential(
            *(nn.Linear(self.featurizer.n_outputs, 1024), nn.ReLU(), nn.Dropout()),
            *(nn.Linear(1024, 1024), nn.ReLU(), nn.Dropout()),
            nn.Linear(1024, count),
        )
        self.register_buffer("clusters", torch.empty(0, dtype=torch.long))
        self.register_buffer("cluster_weights", torch.ones(count))
        self.steps: int | None = None
        self.weight = 0.0
        self.optimizer = self.make_optimizer()

    def start(self, plan: TrainingPlan) -> None:
        """Learns how long the ramp is."""
        self.steps = plan.steps

    def epoch(self, data: TrainingData) -> None:
        """Clusters all images anew; a cluster keeps its number from epoch to epoch."""
        if self.steps is None:
            raise AlgorithmError("MMLD ramps over the run and must know its length; call start(plan) before epoch.")
        count = self.hparams["mmld_clusters"]
        styles = of_all_images(self, data, self.style)
        centre, _, axes = principal_axes(styles)
        _, clusters = kmeans((styles - centre) @ axes[:, :256], min(count, len(data)), self.rng)
        self.clusters = relabelled(clusters, self.clusters, count)
        sizes = torch.bincount(self.clusters, minlength=count).to(self.cluster_weights)
        self.cluster_weights = torch.where(sizes > 0, 1 / sizes, 0)
        self.weight = ramp(self.step / self.steps)

    def style(self, x: torch.Tensor) -> torch.Tensor:
        """The mean and the deviation of each channel of the first two stages' maps."""
        maps: list[torch.Tensor] = []
        stages = self.featurizer.stages[:2]
        hooks = [stage.register_forward_hook(lambda module, given, out: maps.append(out)) for stage in stages]
        self.featurizer(x)
        for hook in hooks:
            hook.remove()
        flat = [at_least_float32(channels).flatten(2) for channels in maps]
        deviations = [(channels.var(2, correction=0) + 1e-5).sqrt() for channels in flat]
        return torch.cat([*(channels.mean(2) for channels in flat), *deviations], 1)

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Risk, loss of the discriminator on features with reversed gradient, and mean entropy of the predictions."""
        clusters = cluster_of(self, batches, self.clusters)
        features = self.featurizer(batches.x)
        logits = self.classifier(features)
        guesses = self.discriminator(reverse_gradient(features, self.hparams["mmld_adversary"] * self.weight))
        discrimination = F.cross_entropy(guesses, clusters, self.cluster_weights)
        entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        risk = F.cross_entropy(logits, batches.y)
        loss = risk + discrimination + self.hparams["mmld_entropy"] * self.weight * entropy
        return loss, {"risk": risk, "discrimination": discrimination, "entropy": entropy}


@register(
    space=Space(adaclust_clusters=choice(1, 3, 5, default=5), adaclust_offset=choice(8, 64, 512, default=8)),
    paper="Thomas et al., 2021",
)
class AdaClust(ERM):
    """Clusters images by the lesser components of their features and tells the classifier the cluster's mean.

    Before the epochs 0, 1, 2, 4, 8, … all training images are clustered; an image's embedding is the mean feature of
    its cluster and stands beside its own feature before the classifier.

    Departures from the reference code, which looks at test images in advance and centres features twice: a test image
    gets the mean training feature of the nearest training centroid, so that its prediction depends on no other image.
    Of few components at most the first half is left out, and there are no more clusters than images. The schedule of
    the learning rate is the recipe's.

    Attributes:
        clusters: The cluster of every training image.
        centre: The mean feature of all training images.
        axes: From centred to whitened features.
        centroids: The clusters' centres among whitened features of length 1.
        means: The clusters' mean features.
    """

    positive_hparams = ("adaclust_clusters",)
    clusters: torch.Tensor
    centre: torch.Tensor
    axes: torch.Tensor
    centroids: torch.Tensor
    means: torch.Tensor

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        width = self.featurizer.n_outputs
        del self.network  # the classifier sees more than features
        self.classifier = networks.Classifier(2 * width, num_classes, self.hparams.get("nonlinear_classifier", False))
        self.register_buffer("clusters", torch.empty(0, dtype=torch.long))
        for name, shape in {"centre": (width,), "axes": (width, 1), "centroids": (1, 1), "means": (1, width)}.items():
            self.register_buffer(name, torch.zeros(shape))  # one empty cluster until the first epoch
        self.most_clusters = self.hparams["adaclust_clusters"] * num_classes
        self.epochs = 0
        self.optimizer = self.make_optimizer()

    def epoch(self, data: TrainingData) -> None:
        """Clusters all images anew before epoch 0 and every epoch whose number is a power of two."""
        number, self.epochs = self.epochs, self.epochs + 1
        if number & (number - 1):
            return
        features = of_all_images(self, data, self.featurizer)
        centre, variances, axes = principal_axes(features)
        first = min(self.hparams["adaclust_offset"], len(variances) // 2)
        kept = slice(first, first + 512)
        self.centre = centre.to(self.centre)
        self.axes = (axes[:, kept] / variances[kept].sqrt()).to(self.axes)
        count = min(self.most_clusters, len(features))
        centroids, self.clusters = kmeans(self.whitened(features), count, self.rng)
        self.centroids = centroids.to(self.centroids)
        self.means = group_means(features, self.clusters, count)[0].to(self.means)

    def whitened(self, features: torch.Tensor) -> torch.Tensor:
        """Features along the kept axes, each of variance 1, scaled to length 1 (float64: immune to autocast)."""
        axes, centre = self.axes.double(), self.centre.double()
        return F.normalize(torch.cat([(part - centre) @ axes for part in features.split(CHUNK)]), dim=1)

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Risk of the classifier on features beside their images' embeddings, which are constants."""
        embeddings = self.means[cluster_of(self, batches, self.clusters)]
        logits = self.classifier(torch.cat([self.featurizer(batches.x), embeddings], 1))
        return F.cross_entropy(logits, batches.y), {}

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of images, each beside the mean training feature of its nearest cluster."""
        features = self.featurizer(x)
        embeddings = self.means[nearest(self.whitened(features), self.centroids.double())]
        return self.classifier(torch.cat([features, embeddings], 1))
