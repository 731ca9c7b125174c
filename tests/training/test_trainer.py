"""One step and one evaluation: what the algorithm is given, in which mode, with which random numbers."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shiftbed.algorithms import ERM, register
from shiftbed.algorithms.base import optimizers_of
from shiftbed.algorithms.tuning import innermost
from shiftbed.data import load
from shiftbed.data.arrays import write_arrays
from shiftbed.data.dataset import Card, Domain
from shiftbed.data.load import forget
from shiftbed.errors import AlgorithmError
from shiftbed.protocols import Fixed, LeaveOut
from shiftbed.training import pool
from shiftbed.training.device import Runtime, numerics
from shiftbed.training.job import make_job
from shiftbed.training.pool import pool_of
from shiftbed.training.recipes import recipe
from shiftbed.training.schedules import learning_rate_factor, set_learning_rates
from shiftbed.training.trainer import Trainer, cpu_evaluation_batch
from tests.conftest import tiny_job


def test_a_batch_is_the_next_stretch_of_every_training_domain_s_stream():
    job = tiny_job("ERM")
    trainer = Trainer(job)
    streams = trainer.data.streams
    assert list(streams) == ["+90%", "+80%"]
    for split in job.task.of_role("train"):
        assert np.array_equal(streams[split.domain].indices, split.indices), "training examples and no others"
    for step in (0, 3, 63, 64, 130):
        batches = trainer.data.batches(*trainer.data.step_inputs(step))
        for (x, y), domain in zip(batches, streams, strict=True):
            chosen = streams[domain].take(4 * step, 4)
            images = load("ColoredDigits")[domain].inputs[chosen].transpose(0, 3, 1, 2)
            assert torch.equal(x, torch.from_numpy(images).float() / 255)
            assert y.tolist() == load("ColoredDigits")[domain].labels[chosen].tolist()
    first, second = (stream.take(0, 1000) for stream in streams.values())
    assert len(first) == len(second) and not np.array_equal(np.argsort(first), np.argsort(second)), "each its own"


def test_memory_that_the_system_would_free_counts_as_free(tmp_path, monkeypatch):
    said = tmp_path / "meminfo"
    said.write_text("MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:   4000 kB\n")
    monkeypatch.setattr(pool, "MEMORY", said)
    assert pool._free_memory("cpu") == 4000 * 1024
    monkeypatch.setattr(pool, "MEMORY", tmp_path / "none")
    assert pool._free_memory("cpu") > 2**28


def test_larger_images_are_averaged_down():
    pool, original = pool_of("EmojiStyles", 32), load("EmojiStyles")["noto"]
    start = pool.starts["noto"]
    x, y = (values[start : start + len(original.labels)] for values in (pool.resident, pool.labels))
    images = torch.from_numpy(original.inputs[:50].transpose(0, 3, 1, 2).copy()).float()
    assert torch.equal(x[:50].float(), F.avg_pool2d(images, 2).round())
    assert y.tolist() == original.labels.tolist()


@pytest.fixture
def mixed_sizes(tmp_path, monkeypatch):
    """A dataset whose domains have images of 48×48, 16×16 and 30×20."""
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path))
    random, labels = np.random.default_rng(0), np.arange(12) % 2
    sizes = {"large": (48, 48), "small": (16, 16), "oblong": (30, 20)}
    domains = [
        Domain(name, random.integers(0, 256, (12, *size, 3)).astype(np.uint8), labels) for name, size in sizes.items()
    ]
    about = {"summary": "made", "licence": "none", "citation": "none", "source": "made"}
    counts = dict.fromkeys(sizes, 12)
    made = Card(name="MixedSizes", version=1, classes=("a", "b"), domains=counts, size_class="small", **about)
    write_arrays(domains, made, tmp_path / "packs" / made.name)
    forget()
    yield domains
    forget()


def test_domains_smaller_than_the_image_size_come_to_it_with_the_others(mixed_sizes, tmp_path):
    pool = pool_of("MixedSizes", 32)
    assert pool.resident.shape == (36, 3, 32, 32)
    small = torch.from_numpy(mixed_sizes[1].inputs).permute(0, 3, 1, 2)
    assert torch.equal(pool.resident[12:24], small.repeat_interleave(2, 2).repeat_interleave(2, 3))
    job = make_job(
        "MixedSizes", "ERM", LeaveOut(("oblong",)), recipe("quick", "MixedSizes", steps=1), overrides={"batch_size": 2}
    )
    trainer = Trainer(job)
    trainer.advance()
    assert trainer.evaluate()["splits"]["oblong/in"]["count"] > 0


@pytest.mark.parametrize("size", [(64, 64), (97, 61), (33, 47)])
def test_images_are_reduced_some_at_a_time_to_the_same_bytes(size, monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (9, *size, 3)).astype(np.uint8)
    whole = pool._averaged(torch.from_numpy(images), 32)
    monkeypatch.setattr(pool, "AT_ONCE", 4)  # the last one is alone
    assert np.array_equal(pool._reduced(images, 32), whole)


def test_modes_and_random_numbers_of_updates_and_evaluations():
    seen = []

    class Watching(ERM):
        def update(self, minibatches, unlabeled=None):
            seen.append(("update", self.training, self.rng.random(), torch.rand(1).item(), np.random.rand()))
            return super().update(minibatches)

        def predict(self, x):
            seen.append(("predict", self.training, torch.rand(1).item()))
            return super().predict(x)

    register()(Watching)
    trainer = Trainer(tiny_job("Watching"))
    trainer.advance()
    trainer.advance()
    torch.rand(17)
    trainer.evaluate()
    trainer.advance()
    updates = [entry for entry in seen if entry[0] == "update"]
    assert all(training for _, training, *_ in updates)
    assert len({draws for entry in updates for draws in entry[2:]}) == 9, "every step draws anew"
    modes = [training for what, training, *_ in seen if what == "predict"]
    draws = [draw for what, training, draw, *_ in seen if what == "predict" and not training]
    evaluated = len(modes) - len(updates)
    assert evaluated > 0 and modes == [True, True, *[False] * evaluated, True], "updates predict too, while training"
    again = Trainer(tiny_job("Watching"))
    seen.clear()
    again.step = 2
    again.evaluate()
    assert [entry[2] for entry in seen] == draws, "evaluation draws are the step's own"


def test_the_optimizer_takes_the_drawn_values():
    group = Trainer(tiny_job("ERM", lr=0.5, weight_decay=0.25)).algorithm.optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.5, 0.25)


def test_the_small_network_keeps_no_statistics_of_batches():
    assert list(Trainer(tiny_job("ERM")).algorithm.network.buffers()) == []


def test_a_fresh_optimizer_keeps_its_place_in_the_schedule():
    how = recipe("quick", "ColoredDigits", steps=10, schedule="cosine")
    for name, values, initial in (
        ("IRM", {"irm_penalty_anneal_iters": 6}, 1e-3),
        ("IB_IRM", {"irm_penalty_anneal_iters": 9, "ib_penalty_anneal_iters": 6}, 1e-3),
        ("EQRM", {"eqrm_burnin_iters": 6, "eqrm_lr": 1e-4}, 1e-4),
        ("ERMPlusPlus", {"linear_steps": 6, "linear_lr": 5e-5}, 1e-3),
    ):
        trainer = Trainer(make_job("ColoredDigits", name, LeaveOut(("-90%",)), how, overrides={"lr": 1e-3, **values}))
        for _ in range(7):
            trainer.advance()
        (group,) = optimizers_of(trainer.algorithm)[0].param_groups
        assert group["lr"] == pytest.approx(initial * learning_rate_factor(how, 6)), name
        first = next(iter(optimizers_of(trainer.algorithm)[0].state.values()))
        assert first["step"] == 1, "its moments are new"


def test_a_schedule_reaches_optimizers_in_lists_and_dicts():
    class Several(ERM):
        def __init__(self, input_shape, num_classes, num_domains, hparams):
            super().__init__(input_shape, num_classes, num_domains, hparams)
            self.optimizers = [torch.optim.SGD(self.featurizer.parameters(), lr=0.4)]
            self.by_name = {"classifier": torch.optim.SGD(self.classifier.parameters(), lr=0.2)}

    register()(Several)
    how = recipe("quick", "ColoredDigits", steps=10, schedule="cosine")
    for name in ("Several", "EoA(Several)"):
        trainer = Trainer(make_job("ColoredDigits", name, LeaveOut(("-90%",)), how))
        for _ in range(6):
            trainer.advance()
        inside = innermost(trainer.algorithm)
        rates = [one.param_groups[0]["lr"] for one in (*inside.optimizers, *inside.by_name.values())]
        assert rates == pytest.approx([0.2, 0.1]), "half of them in the middle"


def test_what_learns_from_validation_says_so_where_all_is_trained_on():
    how = recipe("quick", "ColoredDigits", steps=2, evaluate_every=1)
    whole = Fixed(train=("+90%",), test=("-90%",), validation=("+80%",))
    trainer = Trainer(make_job("ColoredDigits", "SWAD", whole, how))
    trainer.advance()
    with pytest.raises(AlgorithmError, match="SWAD needs held-out images of the training domains"):
        trainer.evaluate()


@pytest.mark.parametrize("bad", [False, True])
def test_a_loss_that_is_no_single_number_is_watched_too(bad):
    class ByDomain(ERM):
        def update(self, minibatches, unlabeled=None):
            loss = super().update(minibatches)["loss"]
            return {"loss": torch.stack([loss, loss * (math.nan if bad else 1)])}

    register()(ByDomain)
    trainer = Trainer(tiny_job("ByDomain"))
    trainer.advance()
    assert trainer.diverged_at() == (1 if bad else None)


def test_the_rate_rises_evenly_and_then_follows_the_schedule():
    how = recipe("quick", "RotatedDigits", steps=100, schedule="cosine", warm_up=0.2)
    factors = [learning_rate_factor(how, step) for step in range(100)]
    assert factors[:20] == pytest.approx([(step + 1) / 20 for step in range(20)])
    assert factors[20] == 1
    assert factors[60] == pytest.approx(0.5), "half of the way down"
    assert learning_rate_factor(how.model_copy(update={"schedule": "constant"}), 50) == 1
    plain = how.model_copy(update={"warm_up": 0.0})
    assert learning_rate_factor(plain, 30) == 0.5 * (1 + math.cos(math.pi * 30 / 100)), "to the bit as it was"
    constant = recipe("quick", "RotatedDigits", warm_up=0.5, steps=10)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    set_learning_rates([optimizer], constant, 0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("precision", "tf32", "half"), [("float32", False, False), ("tf32", True, False), ("bf16", True, True)]
)
def test_a_job_s_arithmetic_holds_for_its_steps_alone(precision, tf32, half):
    matmul, convolution = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, convolution.allow_tf32, torch.is_autocast_enabled("cpu")
    with numerics(precision, Runtime("cpu")):
        assert (matmul.allow_tf32, convolution.allow_tf32) == (tf32, tf32)
        product = torch.ones(2, 2) @ torch.ones(2, 2)
        assert product.dtype == (torch.bfloat16 if half else torch.float32)
    assert (matmul.allow_tf32, convolution.allow_tf32, torch.is_autocast_enabled("cpu")) == before


def test_large_images_are_evaluated_few_at_a_time_on_a_cpu():
    assert [cpu_evaluation_batch((3, side, side)) for side in (64, 224, 4096)] == [512, 41, 1]
    assert cpu_evaluation_batch((20,)) >= 512, "inputs that are no images"
    assert Trainer(tiny_job("ERM"))._evaluation_batch() == 512
    how = recipe("quick", "ColoredDigits", augmentation={"size": 224})
    large = make_job("ColoredDigits", "ERM", LeaveOut(("-90%",)), how)
    assert Trainer(large)._evaluation_batch() == 41
