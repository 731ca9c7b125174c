"""What every registered algorithm, and every class pasted from elsewhere, must do."""

import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shiftbed.algorithms import ALGORITHMS, ERM, Batches
from shiftbed.training.job import search_space


class PastedVREx(ERM):
    """Written as such classes are published: counters in buffers, a buffer that grows, NumPy draws, floats returned."""

    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super(PastedVREx, self).__init__(input_shape, num_classes, num_domains, hparams)  # noqa: UP008
        self.register_buffer("update_count", torch.tensor([0]))
        self.register_buffer("history", torch.Tensor())
        self.inner_state = None
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)

    def update(self, minibatches, unlabeled=None):
        device = "cuda" if minibatches[0][0].is_cuda else "cpu"
        if not len(self.history):
            self.history = torch.ones(len(minibatches)).to(device)
        all_x = torch.cat([x for x, y in minibatches])
        all_logits = self.network(all_x)
        start, losses = 0, []
        for x, y in minibatches:
            losses.append(F.cross_entropy(all_logits[start : start + x.shape[0]], y))
            start += x.shape[0]
        losses = torch.stack(losses)
        loss = losses.mean() + np.random.beta(1, 1) * ((losses - losses.mean()) ** 2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.history = 0.9 * self.history + losses.detach()
        self.inner_state = {"last": [loss.item(), int(self.update_count)]}
        self.update_count += 1
        return {"loss": loss.item()}


def build(name, domains=3):
    values = {**search_space("ERM", "ColoredDigits").draw(0, 0), "network": "small", "irm_penalty_anneal_iters": 2}
    cls = PastedVREx if name == "pasted" else ALGORITHMS[name].cls
    space = {} if name == "pasted" else ALGORITHMS[name].space().draw(0, 0)
    return cls((2, 8, 8), 3, domains, {**space, **values})


def batches(seed, domains=3):
    generator = torch.Generator().manual_seed(seed)
    return Batches(torch.rand(4 * domains, 2, 8, 8, generator=generator), torch.arange(4 * domains) % 3, [4] * domains)


def step(algorithm, seed):
    algorithm.train()
    algorithm.rng = np.random.default_rng(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return algorithm.update(batches(seed))


EVERYONE = [*ALGORITHMS, "pasted"]


@pytest.mark.parametrize("name", EVERYONE)
@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_saved_and_loaded_into_a_new_object_the_next_step_is_the_same(name, before):
    algorithm = build(name)
    for seed in range(before):
        step(algorithm, seed)
    file = io.BytesIO()
    torch.save(algorithm.state_dict(), file)
    torch.manual_seed(99)
    other = build(name)
    other.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    for seed in range(before, before + 3):
        one, two = step(algorithm, seed), step(other, seed)
        assert float(one["loss"]) == float(two["loss"])
    for key, value in algorithm.state_dict().items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other.state_dict()[key]), key


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_parameter_is_in_the_optimizer_once_and_moves(name):
    algorithm = build(name)
    parameters = [parameter for group in algorithm.optimizer.param_groups for parameter in group["params"]]
    assert sorted(map(id, parameters)) == sorted(map(id, algorithm.parameters()))
    before = [parameter.clone() for parameter in algorithm.parameters()]
    for seed in range(3):
        step(algorithm, seed)
    for (key, now), then in zip(algorithm.named_parameters(), before, strict=True):
        assert not torch.equal(now, then), key


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_update_returns_detached_tensors(name):
    for value in step(build(name), 0).values():
        assert isinstance(value, torch.Tensor)
        assert not value.requires_grad


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_predict_does_not_depend_on_the_batch(name):
    algorithm = build(name).eval()
    x = batches(1).x
    assert torch.allclose(algorithm.predict(x)[:2], algorithm.predict(x[:2]), atol=1e-6)


def test_batches_are_a_list_of_minibatches_and_one_whole():
    whole = batches(0)
    pairs = list(whole)
    assert len(whole) == 3 and [len(y) for _, y in pairs] == [4, 4, 4]
    assert torch.equal(torch.cat([x for x, _ in pairs]), whole.x)
    assert pairs[1][0].data_ptr() == whole.x[4:].data_ptr(), "a view, not a copy"
    assert torch.equal(whole[-1][1], pairs[2][1]) and len(whole[:2]) == 2
    assert Batches.of(whole) is whole


def test_domain_means_of_equal_and_unequal_batches():
    values = torch.arange(6.0)
    assert Batches(values, values, (3, 3)).mean(values).tolist() == [1, 4]
    assert Batches(values, values, (1, 5)).mean(values).tolist() == [0, 3]
