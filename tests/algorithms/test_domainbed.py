"""Classes in the style that is published for DomainBed, one of each family, run here as they are."""

# ruff: noqa: UP008
import copy

import numpy as np
import pytest
import torch
import torch.autograd as autograd
import torch.nn.functional as F
from torch import nn

from shiftbed.algorithms import domainbed, register
from shiftbed.algorithms.domainbed import ERM, Algorithm, misc, networks
from shiftbed.hparams import Space, constant
from shiftbed.protocols import LeaveOut
from shiftbed.training.job import make_job
from shiftbed.training.model import encode_weights, load
from shiftbed.training.recipes import recipe
from shiftbed.training.run import run_job
from shiftbed.training.store import LocalStore
from shiftbed.training.trainer import Trainer
from tests.algorithms.common import SHAPE, default_hparams, make_batches
from tests.conftest import tiny_job


class FeatureMatch(ERM):
    """Alignment: a distance between the mean features of all pairs of environments."""

    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super(FeatureMatch, self).__init__(input_shape, num_classes, num_domains, hparams)
        self.gamma = hparams.get("gamma", 0.5)

    def distance(self, a, b):
        return (a.mean(0, keepdim=True) - b.mean(0, keepdim=True)).pow(2).mean()

    def update(self, minibatches, unlabeled=None):
        objective, penalty = 0, 0
        nmb = len(minibatches)
        features = [self.featurizer(xi) for xi, _ in minibatches]
        classifs = [self.classifier(fi) for fi in features]
        targets = [yi for _, yi in minibatches]
        for i in range(nmb):
            objective += F.cross_entropy(classifs[i], targets[i])
            for j in range(i + 1, nmb):
                penalty += self.distance(features[i], features[j])
        objective /= nmb
        self.optimizer.zero_grad()
        (objective + self.gamma * penalty).backward()
        self.optimizer.step()
        if torch.is_tensor(penalty):
            penalty = penalty.item()
        return {"loss": objective.item(), "penalty": penalty}


class TwoPlayers(Algorithm):
    """Adversarial: a discriminator with its own optimizer, turns by a counter in a buffer."""

    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super(TwoPlayers, self).__init__(input_shape, num_classes, num_domains, hparams)
        self.register_buffer("update_count", torch.tensor([0]))
        self.featurizer = networks.Featurizer(input_shape, self.hparams)
        self.classifier = networks.Classifier(
            self.featurizer.n_outputs, num_classes, self.hparams["nonlinear_classifier"]
        )
        self.discriminator = networks.MLP(
            self.featurizer.n_outputs, num_domains, {"mlp_width": 8, "mlp_depth": 3, "mlp_dropout": 0.1}
        )
        self.disc_opt = torch.optim.Adam(self.discriminator.parameters(), lr=self.hparams["lr"], betas=(0.5, 0.9))
        self.gen_opt = torch.optim.Adam(
            (list(self.featurizer.parameters()) + list(self.classifier.parameters())), lr=self.hparams["lr"]
        )

    def update(self, minibatches, unlabeled=None):
        device = "cuda" if minibatches[0][0].is_cuda else "cpu"
        self.update_count += 1
        all_x = torch.cat([x for x, y in minibatches])
        all_y = torch.cat([y for x, y in minibatches])
        all_z = self.featurizer(all_x)
        labels = torch.cat(
            [torch.full((x.shape[0],), i, dtype=torch.int64, device=device) for i, (x, y) in enumerate(minibatches)]
        )
        disc_loss = F.cross_entropy(self.discriminator(all_z), labels)
        if self.update_count.item() % 2 < 1:
            self.disc_opt.zero_grad()
            disc_loss.backward()
            self.disc_opt.step()
            return {"disc_loss": disc_loss.item()}
        gen_loss = F.cross_entropy(self.classifier(all_z), all_y) - 0.1 * disc_loss
        self.disc_opt.zero_grad()
        self.gen_opt.zero_grad()
        gen_loss.backward()
        self.gen_opt.step()
        return {"gen_loss": gen_loss.item()}

    def predict(self, x):
        return self.classifier(self.featurizer(x))


class SignMask(ERM):
    """Gradients: those of each environment, kept where they agree."""

    def update(self, minibatches, unlabeled=None):
        total_loss = 0
        param_gradients = [[] for _ in self.network.parameters()]
        for x, y in minibatches:
            loss = F.cross_entropy(self.network(x), y)
            total_loss += loss
            for grads, g in zip(param_gradients, autograd.grad(loss, self.network.parameters()), strict=True):
                grads.append(g)
        self.optimizer.zero_grad()
        for param, grads in zip(self.network.parameters(), param_gradients, strict=True):
            grads = torch.stack(grads, dim=0)
            param.grad = (torch.sign(grads).mean(0).abs() > 0.5).float() * grads.mean(0)
        self.optimizer.step()
        return {"loss": (total_loss / len(minibatches)).item()}


class MetaStep(ERM):
    """Meta-learning: steps on copies of the network, with an inner optimizer whose state is carried along."""

    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super(MetaStep, self).__init__(input_shape, num_classes, num_domains, hparams)
        self.optimizer_inner_state = None

    def update(self, minibatches, unlabeled=None):
        inner = copy.deepcopy(self.network)
        optimizer = torch.optim.Adam(inner.parameters(), lr=self.hparams["lr"])
        if self.optimizer_inner_state is not None:
            optimizer.load_state_dict(self.optimizer_inner_state)
        for (xi, yi), (xj, yj) in misc.split_meta_train_test(list(minibatches), num_meta_test=2):
            loss = F.cross_entropy(inner(xi), yi) + F.cross_entropy(inner(xj), yj)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        self.optimizer_inner_state = optimizer.state_dict()
        meta, now = misc.ParamDict(self.network.state_dict()), misc.ParamDict(inner.state_dict())
        self.network.load_state_dict(meta + 0.5 * (now - meta))
        return {"loss": loss.item(), "moved": misc.l2_between_dicts(meta, now).item()}


class MeanOfWeights(ERM, misc.ErmPlusPlusMovingAvg):
    """Averaging: predicts with the running mean of the weights."""

    def __init__(self, input_shape, num_classes, num_domains, hparams):
        ERM.__init__(self, input_shape, num_classes, num_domains, hparams)
        misc.ErmPlusPlusMovingAvg.__init__(self, self.network)
        self.sma_start_iter = 2

    def update(self, minibatches, unlabeled=None):
        all_x = torch.cat([x for x, y in minibatches])
        all_y = torch.cat([y for x, y in minibatches])
        loss = F.cross_entropy(self.network(all_x), all_y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.update_sma()
        return {"loss": loss.item()}

    def predict(self, x):
        self.network_sma.eval()
        return self.network_sma(x)


class PairMix(ERM):
    """Augmentation: mixtures of random pairs, with shares from NumPy's global generator."""

    def update(self, minibatches, unlabeled=None):
        objective = 0
        for (xi, yi), (xj, yj) in misc.random_pairs_of_minibatches(minibatches):
            lam = np.random.beta(0.3, 0.3)
            predictions = self.predict(lam * xi + (1 - lam) * xj)
            objective += lam * F.cross_entropy(predictions, yi)
            objective += (1 - lam) * F.cross_entropy(predictions, yj)
        objective /= len(minibatches)
        self.optimizer.zero_grad()
        objective.backward()
        self.optimizer.step()
        return {"loss": objective.item()}


class FirstRelease(ERM):
    """As DomainBed's first release has it: minibatches alone, and a counter that has the name of a hook."""

    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super(FirstRelease, self).__init__(input_shape, num_classes, num_domains, hparams)
        self.start = 0

    def update(self, minibatches):
        self.start += 1
        all_x = torch.cat([x for x, y in minibatches])
        all_y = torch.cat([y for x, y in minibatches])
        loss = F.cross_entropy(self.predict(all_x), all_y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.item()}


FAMILIES = [FeatureMatch, TwoPlayers, SignMask, MetaStep, MeanOfWeights, PairMix, FirstRelease]


@pytest.fixture(params=FAMILIES, ids=lambda cls: cls.__name__)
def pasted(request):
    register()(request.param)
    return request.param.__name__


def test_it_trains_and_interrupted_it_ends_the_same(pasted, tmp_path):
    job = tiny_job(pasted)
    whole, broken = LocalStore(tmp_path / "whole"), LocalStore(tmp_path / "broken")
    assert run_job(job, whole, keep="final") == "done"
    asked = iter([False, False, True])
    assert run_job(job, broken, should_stop=lambda: next(asked, True)) == "stopped"
    assert run_job(job, broken, keep="final") == "done"
    for file in ("records.jsonl", "weights.safetensors", "done.json"):
        key = f"jobs/{job.id}/{file}"
        assert whole.get(key) == broken.get(key), file


def test_a_class_that_takes_minibatches_alone_can_be_wrapped(tmp_path):
    register()(FirstRelease)
    job = tiny_job("EoA(FirstRelease)")
    assert run_job(job, LocalStore(tmp_path)) == "done"


class ReadsConstants(ERM):
    """Reads what every table of DomainBed's hyperparameters has."""

    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super(ReadsConstants, self).__init__(input_shape, num_classes, num_domains, hparams)
        self.read = [hparams["resnet18"], hparams["class_balanced"], hparams["data_augmentation"]]


FRAMED, FLIPPED = {"size": 28}, {"size": 28, "flip": 0.5}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [False, False, False]),
        ({"augmentation": FRAMED}, [False, False, False]),
        ({"augmentation": FLIPPED}, [False, False, True]),
        ({"network": "resnet18"}, [True, False, False]),
    ],
)
def test_what_the_recipe_says_has_domainbed_s_names_too_and_is_no_hyperparameter(changes, expected, tmp_path):
    register()(ReadsConstants)
    how = recipe("quick", "ColoredDigits", steps=1, **changes)
    job = make_job("ColoredDigits", "ReadsConstants", LeaveOut(("-90%",)), how, overrides={"batch_size": 2})
    assert not {"resnet18", "class_balanced", "data_augmentation"} & job.describe()["hparams"].keys()
    trainer = Trainer(job)
    assert trainer.algorithm.read == expected
    (tmp_path / "weights.safetensors").write_bytes(encode_weights(trainer))
    assert load(tmp_path).algorithm.read == expected


def test_a_hyperparameter_of_such_a_name_is_the_class_s_own(tmp_path):
    @register(space=Space(class_balanced=constant(True)))
    class Balanced(ReadsConstants):
        pass

    trainer = Trainer(tiny_job("Balanced"))
    (tmp_path / "weights.safetensors").write_bytes(encode_weights(trainer))
    assert trainer.algorithm.read == load(tmp_path).algorithm.read == [False, True, False]


def test_a_child_that_changes_the_prediction_alone_learns_by_it():
    class Halved(ERM):
        def predict(self, x):
            return self.network(x) / 2

    algorithm, batches = Halved(SHAPE, 3, 3, default_hparams("ERM")), make_batches(0, dtype=torch.float32)
    expected = F.cross_entropy(algorithm.network(batches.x) / 2, batches.y)
    assert algorithm.update(batches)["loss"].item() == pytest.approx(expected.item())


def test_a_whole_network_takes_and_gives_its_weights_at_once():
    one, other = (networks.WholeFish(SHAPE, 3, default_hparams("ERM")) for _ in range(2))
    third = networks.WholeFish(SHAPE, 3, default_hparams("ERM"), weights=one.state_dict())
    other.reset_weights(misc.ParamDict(one.state_dict()) * 2 - misc.ParamDict(one.state_dict()))
    x = make_batches(0, dtype=torch.float32).x
    assert torch.equal(one(x), third(x)) and torch.allclose(one(x), other(x), atol=1e-6)


def test_classes_of_domainbed_s_own_file_find_names_without_misc():
    used = {"ErmPlusPlusMovingAvg", "MovingAverage", "Nonparametric", "ParamDict", "SupConLossLambda"}
    used |= {"l2_between_dicts", "proj", "random_pairs_of_minibatches", "split_meta_train_test"}
    assert used <= set(domainbed.__all__)
    assert all(getattr(domainbed, name) is getattr(misc, name) for name in used)


def minibatch(size, value):
    return torch.full((size, 1), float(value)), torch.full((size,), value)


def test_pairs_form_one_cycle_and_are_cut_to_the_shorter():
    pairs = misc.random_pairs_of_minibatches([minibatch(size, size) for size in (2, 3, 4)])
    firsts = [int(one[1][0]) for one, _ in pairs]
    assert sorted(firsts) == [2, 3, 4]
    for (x1, y1), (x2, y2) in pairs:
        assert len(x1) == len(x2) == len(y1) == len(y2) == min(int(y1[0]), int(y2[0]))
        assert int(y1[0]) != int(y2[0])
    seconds = {int(one[1][0]): int(two[1][0]) for one, two in pairs}
    assert seconds[seconds[seconds[2]]] == 2, "three steps lead around the cycle"


@pytest.mark.parametrize(("domains", "held_out", "pairs"), [(3, 1, 2), (3, 2, 1), (2, 2, 1), (2, 1, 1), (5, 2, 3)])
def test_meta_splits_never_share_a_domain_and_are_never_empty(domains, held_out, pairs):
    minibatches = [minibatch(2, number) for number in range(domains)]
    made = misc.split_meta_train_test(minibatches, held_out)
    assert len(made) == pairs
    train, test = {int(one[1][0]) for one, _ in made}, {int(two[1][0]) for _, two in made}
    assert not train & test


def test_named_tensors_calculate_as_one_vector():
    one, two = misc.ParamDict(a=torch.tensor(2.0)), misc.ParamDict(a=torch.tensor(5.0))
    assert (one + two)["a"] == 7 and (two - one)["a"] == 3 and (10 - two)["a"] == 5
    assert (0.5 * one)["a"] == 1 and (one / 2)["a"] == 1
    assert misc.l2_between_dicts({"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([1.0, 4.0])}) == 2


def test_the_mean_of_weights_is_the_mean_since_its_start():
    network = nn.Linear(1, 1)
    average = misc.ErmPlusPlusMovingAvg(network)
    average.sma_start_iter = 3
    for value in (5.0, 1.0, 2.0, 3.0):
        nn.init.constant_(network.weight, value)
        average.update_sma()
    assert average.network_sma.weight.item() == pytest.approx((1 + 2 + 3) / 3)


def test_the_moving_average_starts_at_zero_and_passes_gradients_undamped():
    average = misc.MovingAverage(ema=0.75)
    (first,) = average.update({"a": torch.tensor([8.0, 0.0])}).values()
    values = torch.tensor([4.0, 4.0], requires_grad=True)
    (second,) = average.update({"a": values}).values()
    assert first.tolist() == [[8.0, 0.0]] and second.tolist() == [[10.0, 4.0]]  # (0.75 · 2 + 0.25 · 4) / 0.25, and 4
    second.sum().backward()
    assert values.grad.tolist() == [1.0, 1.0]
    assert misc.MovingAverage(0.75, oneminusema_correction=False).update({"a": values})["a"].tolist() == [[1.0, 1.0]]


def test_a_head_is_pulled_into_the_ball_around_another():
    here, there = nn.Linear(2, 1), nn.Linear(2, 1)
    for layer, value in ((here, 0.0), (there, 2.0)):
        nn.init.constant_(layer.weight, value)
        nn.init.constant_(layer.bias, 0.0)
    assert misc.proj(1.0, there, here) is there
    assert there.weight.flatten().tolist() == pytest.approx([0.5**0.5, 0.5**0.5])


def test_quantiles_are_those_of_gaussian_kernels():
    distribution = misc.Nonparametric()
    distribution.estimate_parameters(torch.tensor([0.3, 0.5, 1.1, 0.9], dtype=torch.float64))
    assert float(distribution.icdf(torch.tensor(0.75))) == pytest.approx(1.01790505)


def test_the_contrast_weighs_pairs_within_and_across_domains():
    directions = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.6, 0.8], [3.0, 0.0]], dtype=torch.float64)
    labels, domains = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1])  # the last has no other of its class
    found = misc.SupConLossLambda(lamda=0.25, temperature=1.0)(directions, labels, domains)
    cosines = np.array([[0.0, 0.6, 1.0], [0.0, 0.8, 0.0], [0.6, 0.8, 0.6]])  # with all others, its class first
    pulls = np.array([[0.25, 0.75, 0.75], [0.25, 0.75, 0.75], [0.75, 0.75, 0.25]]) * np.exp(cosines)
    logs = np.log(pulls[:, :2] / pulls.sum(1, keepdims=True))
    assert float(found) == pytest.approx(-logs.mean(1).sum() / (3 + 1), abs=1e-4)


def test_weights_balance_the_classes():
    weights = misc.make_weights_for_balanced_classes([(None, 0), (None, 0), (None, 1)])
    assert weights.tolist() == [0.25, 0.25, 0.5] and weights.dtype == torch.float32
