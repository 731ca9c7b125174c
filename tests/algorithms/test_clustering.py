"""MMLD and AdaClust, and the clustering they stand on, against independent computations."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from torch import nn

from shiftbed.algorithms import ALGORITHMS, Batches
from shiftbed.algorithms.clustering import (
    group_means,
    kmeans,
    nearest,
    principal_axes,
    relabelled,
)
from shiftbed.errors import AlgorithmError
from tests.algorithms.common import (
    CLASSES,
    SHAPE,
    Examples,
    assert_same_as_erm,
    build,
    default_hparams,
    largest_difference,
    make_batches,
    train,
)


def rng(seed=0):
    return np.random.default_rng(seed)


def blobs(seed=0, count=60, groups=3, width=5, spread=0.1):
    """Points around well separated centres, and which centre each is around."""
    random = rng(seed)
    group = np.arange(count) % groups
    points = 10 * np.eye(groups, width)[group] + spread * random.standard_normal((count, width))
    return torch.from_numpy(points), torch.from_numpy(group)


def styled(seed=0, count=40):
    """Images of which every other one is darker and flatter, in random order of classes, and which ones are."""
    random = rng(seed)
    style = torch.arange(count) % 2
    x = torch.from_numpy(random.random((count, 3, 16, 16)))
    x = torch.where(style.view(-1, 1, 1, 1) == 0, x, 0.1 + 0.2 * x)
    return Batches(
        x, torch.from_numpy(random.integers(0, 3, count)), (count // 2, count // 2), torch.arange(count)
    ), style


def part_of(batches, places):
    return Batches(batches.x[places], batches.y[places], (len(places),), torch.as_tensor(places))


def same_partition(one, two):
    return bool(((one[:, None] == one) == (two[:, None] == two)).all())


def test_kmeans_finds_separated_groups():
    points, groups = blobs()
    centroids, clusters = kmeans(points, 3, rng())
    assert same_partition(clusters, groups)
    for number in range(3):
        assert torch.allclose(centroids[number], points[clusters == number].mean(0), atol=1e-12)


def test_kmeans_is_as_good_as_scikit_learn_s():
    points = torch.from_numpy(rng(1).standard_normal((200, 4)))
    centroids, clusters = kmeans(points, 8, rng())
    error = (points - centroids[clusters]).square().sum().item()
    assert error <= 1.02 * KMeans(8, n_init=10, random_state=0).fit(points.numpy()).inertia_


def test_kmeans_depends_on_nothing_but_points_and_generator():
    points = torch.from_numpy(rng(1).standard_normal((50, 4)))
    one, two = kmeans(points, 5, rng(3)), kmeans(points, 5, rng(3))
    assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])


def test_kmeans_of_equal_points_and_of_as_many_clusters_as_points():
    equal = torch.ones(5, 2, dtype=torch.float64)
    assert torch.equal(kmeans(equal, 3, rng())[0], torch.ones(3, 2, dtype=torch.float64))
    points, _ = blobs(count=6)
    centroids, clusters = kmeans(points, 6, rng())
    assert torch.allclose(centroids[clusters], points, atol=1e-12)


def test_group_means_in_chunks_are_those_of_the_whole(monkeypatch):
    points, groups = blobs(count=50)
    expected = torch.stack([points[groups == number].mean(0) for number in range(3)])
    monkeypatch.setattr("shiftbed.algorithms.clustering.CHUNK", 7)
    means, sizes = group_means(points, groups, 4)
    assert torch.allclose(means[:3], expected, atol=1e-13) and means[3].abs().sum() == 0
    assert sizes.tolist() == [17, 17, 16, 0]
    assert torch.equal(nearest(points, means[:3]), groups)


def test_principal_axes_are_scikit_learn_s_and_whiten(monkeypatch):
    monkeypatch.setattr("shiftbed.algorithms.clustering.CHUNK", 7)
    points = torch.from_numpy(rng(2).standard_normal((50, 4)) * [1.0, 5.0, 0.1, 2.0] + 3)
    centre, variances, axes = principal_axes(points)
    reference = PCA(4).fit(points.numpy())
    assert np.allclose(variances.numpy() * 50 / 49, reference.explained_variance_)
    assert np.allclose(axes.T.abs().numpy(), np.abs(reference.components_))
    white = (points - centre) @ axes / variances.sqrt()
    assert torch.allclose(white.T @ white / 50, torch.eye(4, dtype=torch.float64), atol=1e-10)


def test_principal_axes_without_variance_are_left_out():
    points = torch.from_numpy(rng(2).standard_normal((50, 2)))
    _, variances, axes = principal_axes(torch.cat([points, points, torch.ones(50, 1)], 1))
    assert variances.shape == (2,) and axes.shape == (5, 2)


@settings(max_examples=30)
@given(st.permutations(range(4)), st.integers(0, 10))
def test_relabelling_undoes_any_permutation_of_the_numbers(permutation, seed):
    before = torch.from_numpy(rng(seed).integers(0, 4, 30))
    assert torch.equal(relabelled(torch.tensor(permutation)[before], before, 4), before)


def test_relabelling_keeps_as_many_numbers_as_possible():
    before = torch.tensor([0, 0, 0, 1, 1, 2])
    assert relabelled(torch.tensor([2, 2, 0, 0, 0, 1]), before, 3).tolist() == [0, 0, 1, 1, 1, 2]
    first = torch.tensor([2, 0, 1])
    assert torch.equal(relabelled(first, torch.empty(0, dtype=torch.long), 3), first)


def test_mmld_s_style_is_the_mean_and_deviation_of_each_channel():
    class Maps(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.third = nn.Identity(), nn.ReLU(), nn.Identity()
            self.stages = [self.first, self.second, self.third]

        def forward(self, x):
            return self.third(self.second(self.first(x))).flatten(1)

    algorithm = build("MMLD")
    algorithm.featurizer = Maps()
    x = torch.tensor([1.0, 2, 3, 6, -4, 0, 0, 4], dtype=torch.float64).view(1, 2, 2, 2)
    expected = [3, 0, 3, 1, *(math.sqrt(v + 1e-5) for v in (3.5, 8, 3.5, 3))]
    assert algorithm.style(x)[0].tolist() == pytest.approx(expected)


def test_mmld_clusters_all_images_by_style():
    algorithm = build("MMLD", mmld_clusters=2)
    data, style = styled()
    algorithm.epoch(Examples(data))
    assert len(algorithm.clusters) == 40 and same_partition(algorithm.clusters, style)


def test_mmld_s_minibatches_get_the_clusters_of_their_places_in_the_whole():
    algorithm = build("MMLD", mmld_clusters=2).eval()
    data, style = styled()
    algorithm.epoch(Examples(data))
    places = [5, 4, 39, 0, 1]
    _, metrics = algorithm.objective(part_of(data, places), 0)
    guesses = algorithm.discriminator(algorithm.featurizer(data.x[places]))
    clusters = algorithm.clusters[places]
    assert same_partition(clusters, style[places])
    losses = F.cross_entropy(guesses, clusters, reduction="none")
    assert metrics["discrimination"].item() == pytest.approx(losses.mean().item(), abs=1e-12)


def test_mmld_weighs_clusters_equally_in_the_whole_of_the_data():
    algorithm = build("MMLD", mmld_clusters=2).eval()
    whole, style = styled()
    kept = torch.cat([torch.where(style == 0)[0], torch.where(style == 1)[0][:5]])  # 20 bright ones, 5 dark ones
    data = Batches(whole.x[kept], whole.y[kept], (25,), torch.arange(25))
    algorithm.epoch(Examples(data))
    batch = part_of(data, [0, 1, 24])
    _, metrics = algorithm.objective(batch, 0)
    guesses = algorithm.discriminator(algorithm.featurizer(batch.x))
    losses = F.cross_entropy(guesses, algorithm.clusters[[0, 1, 24]], reduction="none")
    weights = torch.tensor([1 / 20, 1 / 20, 1 / 5], dtype=torch.float64)
    assert metrics["discrimination"].item() == pytest.approx(((weights * losses).sum() / weights.sum()).item())


def test_mmld_s_weights_of_clusters_are_as_exact_as_the_network_is():
    algorithm = build("MMLD")
    algorithm.epoch(Examples(make_batches(0)))
    sizes = np.bincount(algorithm.clusters, minlength=3)
    assert algorithm.cluster_weights.tolist() == pytest.approx(1 / sizes, rel=1e-15)


def test_mmld_in_its_first_epoch_is_erm_with_a_discriminator_that_learns():
    algorithm = build("MMLD")
    before = algorithm.discriminator[0].weight.clone()
    assert_same_as_erm(algorithm)
    assert not torch.equal(algorithm.discriminator[0].weight, before)


def test_mmld_differs_from_erm_after_its_first_epoch():
    algorithm, erm = build("MMLD"), build("ERM")
    for one in (algorithm, erm):
        train(one, 6)
        train(one, 3, first=10)
    assert largest_difference(algorithm, erm) > 1e-3


@pytest.mark.parametrize(("step", "weight"), [(0, 0), (6, 0.46211716), (30, 0.98661430), (60, 0.99990920)])
def test_mmld_s_ramp_is_the_golden_one(step, weight):
    algorithm = build("MMLD")  # a plan of 60 steps
    algorithm.step = step
    algorithm.epoch(Examples(make_batches(0)))
    assert algorithm.weight == pytest.approx(weight, abs=1e-8)


def test_mmld_must_know_how_long_its_ramp_is():
    algorithm = ALGORITHMS["MMLD"].cls(SHAPE, CLASSES, 3, default_hparams("MMLD"))
    with pytest.raises(AlgorithmError, match=r"must know its length; call start\(plan\) before epoch\."):
        algorithm.epoch(Examples(make_batches(0)))


def test_mmld_s_gradient_is_that_of_risk_entropy_and_the_reversed_discriminator():
    algorithm = build("MMLD", mmld_adversary=0.7, mmld_entropy=0.4).eval()
    algorithm.epoch(Examples(make_batches(0)))
    algorithm.weight = 0.5
    batches = make_batches(0)
    features = algorithm.featurizer(batches.x)
    logits = algorithm.classifier(features)
    p = logits.softmax(1)
    entropy = torch.distributions.Categorical(p).entropy().mean()
    discrimination = F.cross_entropy(algorithm.discriminator(features), algorithm.clusters, algorithm.cluster_weights)
    risk = F.cross_entropy(logits, batches.y)
    loss, metrics = algorithm.objective(batches, 0)
    assert loss.item() == pytest.approx((risk + discrimination + 0.5 * 0.4 * entropy).item(), abs=1e-12)
    assert metrics["entropy"].item() == pytest.approx(entropy.item(), abs=1e-12)
    weight = next(algorithm.featurizer.parameters())
    (found,) = torch.autograd.grad(loss, weight)
    (expected,) = torch.autograd.grad(risk - 0.5 * 0.7 * discrimination + 0.5 * 0.4 * entropy, weight)
    assert torch.allclose(found, expected, atol=1e-12)


def test_mmld_s_entropy_of_uniform_and_of_certain_predictions():
    algorithm = build("MMLD").eval()
    algorithm.epoch(Examples(make_batches(0)))
    with torch.no_grad():
        algorithm.classifier.weight.zero_()
        algorithm.classifier.bias.zero_()
        assert algorithm.objective(make_batches(0), 0)[1]["entropy"].item() == pytest.approx(math.log(3))
        algorithm.classifier.bias[0] = 1000.0
        assert algorithm.objective(make_batches(0), 0)[1]["entropy"].item() == 0


def test_mmld_s_clusters_keep_their_numbers_from_epoch_to_epoch():
    algorithm = build("MMLD", mmld_clusters=2)
    data = Examples(styled()[0])
    algorithm.epoch(data)
    before = algorithm.clusters.clone()
    for seed in range(1, 5):
        algorithm.rng = rng(seed)
        algorithm.epoch(data)
        assert torch.equal(algorithm.clusters, before)


def test_clustering_leaves_the_mode_and_the_weights_alone():
    for name in ("MMLD", "AdaClust"):
        algorithm = build(name).train()
        before = copy.deepcopy(dict(algorithm.named_parameters()))
        algorithm.epoch(Examples(make_batches(0)))
        assert algorithm.training and algorithm.featurizer.training
        assert all(torch.equal(value, before[key]) for key, value in algorithm.named_parameters())


@pytest.mark.parametrize("name", ["MMLD", "AdaClust"])
def test_without_clusters_or_positions_there_is_one_sentence(name):
    algorithm = build(name)
    with pytest.raises(AlgorithmError, match="positions"):
        algorithm.update(make_batches(0))
    algorithm.epoch(Examples(make_batches(0)))
    with pytest.raises(AlgorithmError, match="positions"):
        algorithm.update(list(make_batches(0)))


@pytest.mark.parametrize("name", ["MMLD", "AdaClust"])
def test_saved_and_loaded_it_continues_as_if_it_was_not(name):
    one, two = build(name), build(name, seed=1)
    train(one, 2)
    train(one, 1, first=10)  # the second epoch
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for algorithm in (one, two):
        train(algorithm, 1, first=11)
        train(algorithm, 1, first=20)
    assert largest_difference(one, two) == 0


@pytest.mark.parametrize("name", ["MMLD", "AdaClust"])
def test_there_may_be_fewer_images_than_clusters(name):
    algorithm = build(name, domains=1)
    train(algorithm, 2, sizes=(2,))
    assert torch.isfinite(algorithm.predict(make_batches(0).x)).all()


def test_adaclust_clusters_before_the_epochs_0_1_2_4_8():
    algorithm = build("AdaClust")
    when = []
    for number in range(10):
        before = algorithm.means
        algorithm.epoch(Examples(make_batches(0)))
        if algorithm.means is not before:
            when.append(number)
    assert when == [0, 1, 2, 4, 8]


def test_adaclust_s_clusters_are_those_of_whitened_features_without_the_first_components():
    algorithm = build("AdaClust", adaclust_clusters=1, adaclust_offset=2).eval()
    data = make_batches(0, (20, 20, 20))
    algorithm.epoch(Examples(data))
    with torch.no_grad():
        features = algorithm.featurizer(data.x)
        pca = PCA(whiten=True).fit(features.numpy())
        rank = int((pca.explained_variance_ > 1e-7 * pca.explained_variance_[0]).sum())
        white = pca.transform(features.numpy())[:, 2:rank]
        white = torch.from_numpy(white / np.linalg.norm(white, axis=1, keepdims=True))
        found = algorithm.whitened(features)
    assert torch.allclose(found @ found.T, white @ white.T, atol=1e-6)
    centres = torch.stack([found[algorithm.clusters == number].mean(0) for number in range(3)])
    assert torch.allclose(algorithm.centroids, centres, atol=1e-9)


def test_adaclust_s_embedding_is_the_mean_feature_of_all_images_of_the_cluster():
    algorithm = build("AdaClust", adaclust_clusters=1).eval()
    data = make_batches(0, (20, 20, 20))
    algorithm.epoch(Examples(data))
    places = [7, 55, 3, 4]
    batch = part_of(data, places)
    with torch.no_grad():
        features = algorithm.featurizer(data.x)
        rows = [features[algorithm.clusters == algorithm.clusters[place]].mean(0) for place in places]
        inputs = torch.cat([features[places], torch.stack(rows)], 1)
        expected = F.cross_entropy(algorithm.classifier(inputs), batch.y)
    loss, _ = algorithm.objective(batch, 0)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-10)
    predicted = algorithm.predict(batch.x)
    assert torch.allclose(predicted, algorithm.classifier(inputs), atol=1e-10), "a training image finds its own cluster"


def test_adaclust_s_prediction_depends_on_no_other_image():
    algorithm = build("AdaClust")
    train(algorithm, 3)
    x = make_batches(5).x
    with torch.no_grad():
        whole = algorithm.eval().predict(x)
        alone = torch.cat([algorithm.predict(image[None]) for image in x])
    assert torch.allclose(whole, alone, atol=1e-12)


def test_adaclust_with_one_cluster_has_one_more_bias():
    algorithm = build("AdaClust").eval()
    algorithm.most_clusters = 1
    data = make_batches(0)
    algorithm.epoch(Examples(data))
    with torch.no_grad():
        features = algorithm.featurizer(data.x)
        own, rest = algorithm.classifier.weight.split(features.shape[1], 1)
        expected = features @ own.T + algorithm.classifier.bias + rest @ features.mean(0)
        assert torch.allclose(algorithm.predict(data.x), expected, atol=1e-10)


def test_adaclust_without_embeddings_is_erm():
    algorithm, erm = build("AdaClust"), build("ERM")
    algorithm.epoch(Examples(make_batches(0)))
    algorithm.means.zero_()
    with torch.no_grad():
        algorithm.classifier.weight[:, :128] = erm.classifier.weight
        algorithm.classifier.bias.copy_(erm.classifier.bias)
    train(algorithm, 5, hooks=False)
    train(erm, 5)
    assert largest_difference(algorithm, erm) < 1e-9


@pytest.mark.parametrize("offset", [8, 64, 512])
def test_adaclust_s_offset_leaves_half_of_few_components(offset):
    algorithm = build("AdaClust", adaclust_offset=offset)
    algorithm.epoch(Examples(make_batches(0, (10, 10, 10))))
    components = algorithm.axes.shape[1] + min(offset, 14)
    assert components in (28, 29) and torch.isfinite(algorithm.centroids).all()
