"""What needs a GPU: every algorithm there, captured steps against plain ones, and exact resume."""

import copy
import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from shiftbed import networks
from shiftbed.algorithms import ALGORITHMS, Batches, call_hook, register
from shiftbed.networks import FeaturizerModule
from shiftbed.protocols import LeaveOut
from shiftbed.training.device import Runtime, numerics
from shiftbed.training.job import make_job
from shiftbed.training.recipes import recipe
from shiftbed.training.run import JobFiles, run_job
from shiftbed.training.store import LocalStore
from shiftbed.training.trainer import Trainer
from tests.algorithms.common import Examples, build, make_batches
from tests.conftest import augmented_job
from tests.training.test_augmented_jobs import ragged
from tests.training.test_crashes import PastedNoise

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")]
NAMES = list(ALGORITHMS)
WAITS = {"VNE"}  # torch itself checks whether its decomposition converged


def on_gpu(batches: Batches) -> Batches:
    return Batches(batches.x.cuda(), batches.y.cuda(), batches.sizes, batches.positions.cuda())


def made(name, **hparams):
    begun = {key: 0 for key in ALGORITHMS[name].space("", "small") if key in ("iters", "linear_steps")}
    algorithm = build(name, dtype=torch.float32, **{**begun, **hparams}).cuda()
    call_hook(algorithm, "epoch", Examples(on_gpu(make_batches(0, dtype=torch.float32))))
    return algorithm.train()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_it_trains_there_and_no_step_waits(name, precision):
    algorithm = made(name)
    with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
        algorithm.update(on_gpu(make_batches(0, dtype=torch.float32)))  # libraries wait when they are first used
        batches = [on_gpu(make_batches(step, dtype=torch.float32)) for step in range(1, 1 + algorithm.cycle)]
        torch.cuda.set_sync_debug_mode("default" if name in WAITS else "error")
        try:
            metrics = [algorithm.update(batch) for batch in batches][-1]
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(metrics["loss"])


def featurizers(algorithm):
    return [module for module in algorithm.modules() if isinstance(module, FeaturizerModule)]


# torch compiles no second derivatives, which are all of IGA; the trainer does not compile it.
@pytest.mark.parametrize("name", [name for name in NAMES if name != "IGA"])
def test_its_networks_can_be_compiled(name):
    plain, compiled = made(name), made(name)
    assert featurizers(compiled)
    for featurizer in featurizers(compiled):
        featurizer.compile()
    for step in range(3):
        batch, losses = on_gpu(make_batches(step, dtype=torch.float32)), []
        for algorithm in (plain, compiled):
            torch.manual_seed(step)  # for dropout
            losses.append(algorithm.update(batch)["loss"])
        assert torch.allclose(*losses, rtol=1e-2)


def job(algorithm, **overrides):
    how = recipe("quick", "ColoredDigits", steps=40, evaluate_every=20)
    space = ALGORITHMS[algorithm].space("", "small")
    early = {key: 15 for key in space if "anneal" in key or "burnin" in key}
    early |= {"mlp_dropout": 0.5} if "mlp_dropout" in space else {}
    return make_job("ColoredDigits", algorithm, LeaveOut(("-90%",)), how, overrides={**early, **overrides})


@pytest.mark.parametrize("name", [name for name in NAMES if ALGORITHMS[name].capturable])
def test_captured_steps_are_the_plain_ones(name, monkeypatch):
    monkeypatch.setattr(torch.nn.Module, "compile", lambda *_, **__: None)
    losses = []
    for accelerate in (True, False):
        trainer = Trainer(job(name), Runtime("cuda", deterministic=True, accelerate=accelerate))
        losses.append([float(trainer.advance()["loss"]) for _ in range(40)])
        assert accelerate == (trainer._captured is not None and trainer._captured.replays)
    assert np.allclose(*losses, rtol=1e-4)


def away_from_kinks(network, x):
    """Images of which no value is so near to zero that rounding decides whether ReLU lets it pass."""
    maps, nearest = x.double(), []
    for conv, relu, norm in network.blocks:
        maps = conv(maps)
        nearest.append(maps.detach().abs().amin((1, 2, 3)))
        maps = norm(relu(maps))
    return x[torch.stack(nearest).amin(0) > 1e-5]


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_the_kernels_of_the_mnist_network_are_as_right_as_its_modules(precision):
    plain = networks.Featurizer((2, 28, 28), {"network": "mnist-convnet"}).cuda().to(memory_format=torch.channels_last)
    exact, fused = copy.deepcopy(plain).double(), copy.deepcopy(plain)
    fused.accelerate()
    x = away_from_kinks(exact, torch.rand(1000, 2, 28, 28, device="cuda"))[:40]
    probe = torch.randn(40, fused.n_outputs, device="cuda")

    def values(network, x):
        features = network(x)
        return [features, *torch.autograd.grad((features * probe.to(features)).sum(), network.parameters())]

    truth = values(exact, x.double())
    with numerics(precision, Runtime("cuda", deterministic=True)):  # the same convolutions for both
        found = [values(network, x) for network in (plain, fused)]
    for right, by_modules, by_kernels in zip(truth, *found, strict=True):
        errors = [float((one.double() - right).detach().norm() / right.norm()) for one in (by_modules, by_kernels)]
        assert errors[1] <= 2 * errors[0] + 1e-6


def test_steps_with_kernels_of_their_own_learn_as_plain_ones_and_repeat_themselves():
    how = recipe("quick", "ColoredDigits", steps=60, network="mnist-convnet", precision="float32")
    one = make_job("ColoredDigits", "ERM", LeaveOut(("-90%",)), how)
    losses = []
    for accelerate in (True, True, False):
        trainer = Trainer(one, Runtime("cuda", deterministic=True, accelerate=accelerate))
        losses.append([float(trainer.advance()["loss"]) for _ in range(60)])
    assert losses[0] == losses[1]
    assert np.allclose(losses[0], losses[2], rtol=0.02) and losses[0] != losses[2]


def test_captured_steps_take_streamed_images_of_different_sizes(tiny_colours, monkeypatch):
    monkeypatch.setattr("shiftbed.training.batches.pool_of", ragged)
    losses = []
    for accelerate in (True, False):
        trainer = Trainer(augmented_job("ERM"), Runtime("cuda", deterministic=True, accelerate=accelerate))
        losses.append([float(trainer.advance()["loss"]) for _ in range(12)])
        assert accelerate == (trainer._captured is not None and trainer._captured.replays)
    assert np.allclose(*losses, rtol=1e-3)


def test_a_class_that_draws_with_numpy_is_not_captured():
    register()(PastedNoise)
    assert Trainer(job("PastedNoise"), Runtime("cuda"))._captured is None


# After an evaluation SWAD keeps a segment that waits for the next one; with two in a row it joins the average then.
@pytest.mark.parametrize("steps", [17, 23], ids=["before an evaluation", "after an evaluation"])
@pytest.mark.parametrize("name", ["IRM", "Mixup", "DANN", "SWAD", "MMLD"])
def test_interrupted_it_ends_with_the_same_bytes(name, steps, tmp_path):
    runtime = Runtime("cuda", deterministic=True)
    one = job(name, **({"swad_n_converge": 2} if name == "SWAD" else {}))
    run_job(one, LocalStore(tmp_path / "whole"), keep="final", runtime=runtime)
    made_steps = []
    stop = {"should_stop": lambda: len(made_steps) == steps, "on_step": lambda step, _: made_steps.append(step)}
    run_job(one, LocalStore(tmp_path / "broken"), keep="final", runtime=runtime, **stop)
    run_job(one, LocalStore(tmp_path / "broken"), keep="final", runtime=runtime)
    files = JobFiles(one.id)
    for key in (files.records, files.weights, files.done):
        hashes = [hashlib.sha256((tmp_path / where / key).read_bytes()).hexdigest() for where in ("whole", "broken")]
        assert hashes[0] == hashes[1], key


@pytest.mark.parametrize("name", ["IRM", "Mixup", "SWAD"])
def test_a_look_after_the_first_update_changes_no_other_number(name, tmp_path):
    usual, files = job(name), []
    looking = replace(usual, recipe=usual.recipe.model_copy(update={"evaluate_first": True}))
    for one in (usual, looking):
        store = LocalStore(tmp_path / str(one.recipe.evaluate_first))
        run_job(one, store, keep="final", runtime=Runtime("cuda", deterministic=True))
        files.append(store.get(JobFiles(one.id).weights))
    assert files[0] == files[1]
