"""The whole state of a class pasted from elsewhere, and the minibatches of a step."""

import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shiftbed.algorithms import ERM, Batches, register
from shiftbed.training.job import search_space
from tests.algorithms import common


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


def build():
    return PastedVREx((2, 8, 8), 3, 3, {**search_space("ERM", "ColoredDigits").draw(0, 0), "network": "small"})


def batches(seed, domains=3):
    generator = torch.Generator().manual_seed(seed)
    return Batches(torch.rand(4 * domains, 2, 8, 8, generator=generator), torch.arange(4 * domains) % 3, [4] * domains)


def step(algorithm, seed):
    algorithm.train()
    algorithm.rng = np.random.default_rng(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return algorithm.update(batches(seed))


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_saved_and_loaded_into_a_new_object_the_next_step_is_the_same(before):
    algorithm = build()
    for seed in range(before):
        step(algorithm, seed)
    file = io.BytesIO()
    torch.save(algorithm.state_dict(), file)
    torch.manual_seed(99)
    other = build()
    other.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    for seed in range(before, before + 3):
        one, two = step(algorithm, seed), step(other, seed)
        assert float(one["loss"]) == float(two["loss"])
    for key, value in algorithm.state_dict().items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other.state_dict()[key]), key


class Elsewhere(ERM):
    """Keeps a tensor beside the weights, in a list, and a table on the host."""

    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.recent, self.table = [], torch.zeros(2)

    def update(self, minibatches, unlabeled=None):
        metrics = super().update(minibatches, unlabeled)
        self.recent = [*self.recent, (self.classifier.weight.detach().clone(), self.step)]
        return metrics


@pytest.mark.filterwarnings("ignore:.*meta:UserWarning")
@pytest.mark.parametrize("name", ["MMLD", "AdaClust", "SWAD", "Elsewhere"])
def test_what_a_checkpoint_held_goes_where_the_weights_are(name):
    """A checkpoint is read on the host; here the weights are on torch's device without memory, elsewhere on a GPU."""
    register()(Elsewhere)
    algorithm = common.build(name)
    common.train(algorithm, 2)
    common.call_hook(algorithm, "evaluated", {"a": {"loss": 1.0, "accuracy": 0.5, "count": 10}})
    other = common.build(name).to("meta")
    other.load_state_dict(algorithm.state_dict())
    held = [tensor for kept in getattr(other, "recent", []) + getattr(other, "queue", []) for tensor in kept[:1]]
    assert held or name in ("MMLD", "AdaClust")
    assert all(tensor.is_meta for tensor in (*held, *other.buffers()))


def test_an_optimizer_keeps_the_kernels_of_its_device():
    """The engine has optimizers on a GPU step so that steps can be captured; a checkpoint may be a CPU's."""
    algorithm, other = common.build("DANN"), common.build("DANN")
    common.train(algorithm, 2)
    for optimizer in (other.optimizer, other.disc_opt):
        for group in optimizer.param_groups:
            group.update(fused=True, capturable=True)
    other.load_state_dict(algorithm.state_dict())
    for optimizer, saved in ((other.optimizer, algorithm.optimizer), (other.disc_opt, algorithm.disc_opt)):
        assert all(group["fused"] and group["capturable"] for group in optimizer.param_groups)
        moments = [[state["exp_avg"] for state in one.state.values()] for one in (optimizer, saved)]
        assert moments[0] and all(map(torch.equal, *moments))


def test_what_a_class_keeps_on_the_host_stays_there():
    register()(Elsewhere)
    algorithm = common.build("Elsewhere").to("meta")
    saved = algorithm.get_extra_state()
    algorithm.set_extra_state(saved)
    assert saved["apart"] == [".table"] and algorithm.table.device.type == "cpu"


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
