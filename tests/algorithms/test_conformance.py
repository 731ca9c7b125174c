"""What every registered algorithm must do, in the spirit of scikit-learn's estimator checks.

The registry is the only list: an algorithm registered tomorrow is checked tomorrow.
"""

import copy
import io
import re
from functools import partial

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from shiftbed.algorithms import ALGORITHMS, ERM, Batches, Wrapper
from shiftbed.algorithms.base import NEEDS, call_hook
from shiftbed.algorithms.state import unsaved
from shiftbed.errors import AlgorithmError
from tests.algorithms import common
from tests.algorithms.common import Examples

SHAPE = (3, 8, 8)
build = partial(common.build, shape=SHAPE)
make_batches = partial(common.make_batches, shape=SHAPE)
train = partial(common.train, shape=SHAPE)
largest_difference = partial(common.largest_difference, shape=SHAPE)

NAMES = list(ALGORITHMS)
WRAPPED = ["SWAD(CORAL)", "EoA(IRM)", "SWAD(LinearProbe(ERM))", "FrozenStages(GroupDRO)", "LPFT(DANN)"]
EVERYONE = [*NAMES, *WRAPPED]


def defined_for(name: str, domains: int) -> bool:
    return domains >= 2 or "two domains" not in ALGORITHMS[name].needs


def optimizers(algorithm):
    """All optimizers an algorithm holds, those of what it wraps included."""
    found = {id(value): value for value in vars(algorithm).values() if isinstance(value, torch.optim.Optimizer)}
    for child in algorithm.children():
        if not isinstance(child, torch.nn.ModuleList):
            found |= {id(optimizer): optimizer for optimizer in optimizers(child)}
    return list(found.values())


def check_every_parameter_is_trained(name, domains, draw):
    # ANDMask may hold a small tensor back for dozens of steps: that is its idea, so it is switched off here.
    algorithm = build(name, domains, draw=draw, **({"tau": 0.0} if name in ("ANDMask", "SANDMask") else {}))
    held = [
        parameter
        for optimizer in optimizers(algorithm)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
    ]
    trainable = {key: value for key, value in algorithm.named_parameters() if value.requires_grad}
    assert sorted(map(id, held)) == sorted(map(id, trainable.values())), "in exactly one optimizer"
    before = {key: value.detach().clone() for key, value in trainable.items()}
    train(algorithm, algorithm.cycle, sizes=(6,) * domains)
    still = [key for key, value in trainable.items() if torch.equal(value, before[key])]
    assert not still, f"never moved: {still}"


@pytest.mark.parametrize("name", EVERYONE)
def test_every_trainable_parameter_is_in_one_optimizer_and_moves(name):
    for draw in range(21):
        check_every_parameter_is_trained(name, 3, draw)


@pytest.mark.parametrize("domains", [1, 2, 5])
@pytest.mark.parametrize("name", EVERYONE)
def test_it_is_so_for_other_numbers_of_domains(name, domains):
    if not defined_for(name, domains):
        with pytest.raises(AlgorithmError, match=r"needs two or more training domains; this task has 1\."):
            build(name, domains)
        return
    for draw in range(4):
        check_every_parameter_is_trained(name, domains, draw)


@pytest.mark.parametrize("name", EVERYONE)
def test_predict_repeats_itself_and_looks_at_one_image_at_a_time(name):
    algorithm = build(name)
    train(algorithm, 3)
    algorithm.eval()
    x = make_batches(5).x
    with torch.no_grad():
        first = algorithm.predict(x)
        np.random.seed(1)
        torch.manual_seed(1)
        algorithm.rng = np.random.default_rng(1)
        assert torch.equal(first, algorithm.predict(x))
        alone = torch.cat([algorithm.predict(x[i : i + 1]) for i in range(4)])
    same = torch.allclose(first[:4], alone, atol=1e-9)
    assert same != ("test batches" in ALGORITHMS[name].needs)


@pytest.mark.parametrize("name", EVERYONE)
def test_saved_and_loaded_into_a_new_object_the_next_steps_are_the_same(name):
    for before in (0, 3, 11):
        algorithm = build(name, dtype=torch.float32)
        train(algorithm, before, dtype=torch.float32)
        assert not unsaved(algorithm)
        file = io.BytesIO()
        torch.save(algorithm.state_dict(), file)
        other = build(name, seed=7, dtype=torch.float32)
        other.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
        one = train(algorithm, 3, first=before, dtype=torch.float32)
        two = train(other, 3, first=before, dtype=torch.float32)
        for left, right in zip(one, two, strict=True):
            assert left.keys() == right.keys()
            assert all(torch.equal(left[key], right[key]) for key in left)
        tensors = {key: value for key, value in algorithm.state_dict().items() if isinstance(value, torch.Tensor)}
        assert all(torch.equal(value, other.state_dict()[key]) for key, value in tensors.items())


@pytest.mark.parametrize("name", EVERYONE)
def test_a_state_is_shared_with_no_other_object_and_knows_where_the_generator_is(name):
    algorithm, other = build(name, dtype=torch.float32), build(name, seed=7, dtype=torch.float32)
    train(algorithm, 3, dtype=torch.float32)
    other.load_state_dict(algorithm.state_dict())
    for step in range(3):
        results = []
        for one in (algorithm.train(), other.train()):
            torch.manual_seed(step)
            np.random.seed(step)
            results.append(one.update(make_batches(step, dtype=torch.float32)))
        assert all(torch.equal(results[0][key], results[1][key]) for key in results[0])
    assert largest_difference(algorithm, other) == 0


@pytest.mark.parametrize("name", EVERYONE)
def test_metrics_are_detached_numbers_and_equal_those_of_the_objective(name):
    algorithm = build(name)
    train(algorithm, 2)
    twin = copy.deepcopy(algorithm).train()
    metrics = train(algorithm, 1, first=2)[0]
    assert "loss" in metrics
    for value in metrics.values():
        assert isinstance(value, torch.Tensor) and not value.requires_grad and torch.isfinite(value).all()
    while isinstance(twin, Wrapper):
        twin = twin.inner
    if type(twin).update is ERM.update:
        torch.manual_seed(2)
        twin.rng = np.random.default_rng(2)
        loss, numbers = twin.objective(make_batches(2), twin.step)
        recomputed = {**numbers, "loss": loss}
        assert all(torch.equal(recomputed[key], value) for key, value in metrics.items())


@pytest.mark.parametrize("name", EVERYONE)
def test_only_its_own_generator_decides(name):
    """With no dropout, neither NumPy's nor torch's default generator changes a step."""
    results = []
    for seed in (0, 1):
        algorithm = build(name, resnet_dropout=0.0, mlp_dropout=0.0)
        call_hook(algorithm, "epoch", Examples(make_batches(0)))
        for step in range(2):
            torch.manual_seed(seed)
            np.random.seed(seed)
            algorithm.rng = np.random.default_rng(step)
            algorithm.train().update(make_batches(step))
        results.append(algorithm)
    assert largest_difference(*results) == 0


class HostReads(TorchDispatchMode):
    """Counts how often a value is brought to the host; an optimizer's counters are there already."""

    def __init__(self):
        super().__init__()
        self.count = 0
        self.counting = True

    def pause(self, *_):
        self.counting = False

    def go_on(self, *_):
        self.counting = True

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += self.counting and function in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.nonzero.default,
            torch.ops.aten._unique2.default,
            torch.ops.aten.masked_select.default,
        )
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", EVERYONE)
def test_no_step_waits_for_the_device(name):
    algorithm = build(name)
    train(algorithm, 1)
    reads = HostReads()
    hooks = [register_optimizer_step_pre_hook(reads.pause), register_optimizer_step_post_hook(reads.go_on)]
    try:
        with reads:
            train(algorithm, algorithm.cycle, first=1)
    finally:
        for hook in hooks:
            hook.remove()
    assert reads.count == 0


ODD = {
    "unequal sizes": ((7, 2, 4), None),
    "one class": ((4, 4, 4), 1),
    "one example a domain": ((1, 1, 1), None),
    "one domain of one example": ((1, 6, 6), None),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", EVERYONE)
def test_odd_batches_are_handled_or_refused_in_one_sentence(name, kind):
    sizes, only = ODD[kind]
    algorithm = build(name)
    call_hook(algorithm, "epoch", Examples(make_batches(0)))
    batch = make_batches(0, sizes)
    y = torch.full_like(batch.y, only) if only is not None else batch.y
    batch = Batches(batch.x, y, sizes, batch.positions)
    algorithm.train()
    try:
        metrics = [algorithm.update(batch) for _ in range(algorithm.cycle)][-1]
    except AlgorithmError as error:
        assert (str(error).endswith(".") and name.split("(")[-1].rstrip(")") in str(error)) or name in str(error)
        return
    assert torch.isfinite(metrics["loss"])
    weights = [value for value in algorithm.parameters() if value.is_floating_point()]
    assert all(torch.isfinite(value).all() for value in weights)


WRAPPERS = [name for name in NAMES if issubclass(ALGORITHMS[name].cls, Wrapper)]
AVERAGING, TUNING = {"ERMPlusPlus", "EoA", "SWAD"}, {"ERMPlusPlus", "FrozenStages", "LPFT", "LinearProbe"}
# ADRMX has two featurizers; and SagNet has three optimizers, of which ERMPlusPlus could not say whose rate it sets. An
# average of averages, and freezing what is set free inside, would change nothing.
NOT_AROUND = {
    "ADRMX": TUNING,
    "SagNet": {"ERMPlusPlus"},
    "EoA": AVERAGING,
    "SWAD": AVERAGING,
    "LPFT": TUNING,
    "ERMPlusPlus": AVERAGING | TUNING,
}
REFUSED = "{0}.* {1} has no|{0} sets .* {1} has not|{0}.{1}. would average|{0}.{1}.: {1} sets free"


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapper_goes_around_any_other_algorithm(wrapper):
    for name in NAMES:
        if wrapper in NOT_AROUND.get(name, ()):
            with pytest.raises(AlgorithmError, match=REFUSED.format(wrapper, name)):
                build(f"{wrapper}({name})")
            continue
        algorithm = build(f"{wrapper}({name})")
        assert torch.isfinite(train(algorithm, 1)[0]["loss"]), name
        with torch.no_grad():
            assert torch.isfinite(algorithm.eval().predict(make_batches(5).x)).all(), name


@pytest.mark.parametrize("name", ["FACT", "JiGen", "MMLD", "MixStyle", "RCS", "StableNet"])
def test_methods_published_with_sgd_have_the_recipe_s_optimizer(name):
    for recipe, expected in (({}, torch.optim.Adam), ({"optimizer": "sgd"}, torch.optim.SGD)):
        (optimizer,) = optimizers(build(name, **recipe))
        assert type(optimizer) is expected and len(optimizer.param_groups) == 1


DIVISORS = {
    *(("Mixup", "mixup_alpha"), ("MixStyle", "mixstyle_alpha"), ("StableNet", "stablenet_lambda")),
    *(("MMLD", "mmld_clusters"), ("AdaClust", "adaclust_clusters"), ("SWAD", "swad_n_converge")),
    *(("CAD", "temperature"), ("CondCAD", "temperature")),
}


@pytest.mark.parametrize(("name", "hparam"), sorted(DIVISORS))
def test_what_cannot_be_zero_is_refused_in_one_sentence(name, hparam):
    with pytest.raises(AlgorithmError, match=rf"^{name}'s {hparam} is 0; set a number above 0\.$"):
        build(name, **{hparam: 0})


SHARES = {
    *(("LPFT", "lpft_share"), ("MixStyle", "mixstyle_p"), ("FACT", "fact_alpha"), ("JiGen", "jigen_beta")),
    *(("MTL", "mtl_ema"), ("RSC", "rsc_f_drop_factor"), ("RSC", "rsc_b_drop_factor")),
}


@pytest.mark.parametrize(("name", "hparam"), sorted(SHARES))
def test_more_than_the_whole_is_refused_in_one_sentence(name, hparam):
    build(name, **{hparam: 1.0})
    with pytest.raises(AlgorithmError, match=rf"^{name}'s {hparam} is 1\.5; set a share from 0 to 1\.$"):
        build(name, **{hparam: 1.5})


def test_the_sentence_about_inputs_that_are_no_images_tells_their_dimensions():
    with pytest.raises(AlgorithmError, match=r"^ARM needs images, of three dimensions; these inputs have 1\.$"):
        build("ARM", shape=(12,))


@pytest.mark.parametrize("name", EVERYONE)
def test_it_runs_under_autocast(name):
    algorithm = build(name, dtype=torch.float32)
    call_hook(algorithm, "epoch", Examples(make_batches(0, dtype=torch.float32)))
    algorithm.train()
    for step in range(algorithm.cycle):
        algorithm.rng = np.random.default_rng(step)
        with torch.autocast("cpu", torch.bfloat16):
            metrics = algorithm.update(make_batches(step, dtype=torch.float32))
        assert torch.isfinite(metrics["loss"])
    assert all(value.dtype == torch.float32 for value in algorithm.parameters())


def differs_from_erm(algorithm, steps=50):
    erm = build("ERM")
    train(erm, steps)
    train(algorithm, steps)
    return largest_difference(algorithm, erm) > 1e-3


@pytest.mark.parametrize("name", [name for name in NAMES if name != "ERM"])
def test_after_fifty_steps_it_is_not_erm(name):
    changes = {"FrozenStages": {"frozen_stages": 1}}.get(name, {})
    # An annealed method begins within the fifty steps, as it does within the thousands of a real run.
    space = ALGORITHMS[name].space("", "small")
    changes |= {key: 10 for key in space if "anneal" in key or "burnin" in key or key in ("eoa_start", "iters")}
    assert differs_from_erm(build(name, **changes))


def test_a_subclass_that_only_renames_is_found_out():
    class Renamed(ERM):
        pass

    hparams = build("ERM").hparams
    torch.manual_seed(0)
    renamed = Renamed(SHAPE, 3, 3, hparams).double()
    assert not differs_from_erm(renamed)


@pytest.mark.parametrize("name", NAMES)
def test_registration_says_what_it_is(name):
    entry = ALGORITHMS[name]
    first = (entry.cls.__doc__ or "").splitlines()[0]
    assert first.endswith(".") and len(first) <= 110
    assert entry.paper and set(entry.needs) <= set(NEEDS)
    source = "the papers?|the (reference|published) code"
    assert re.search(rf"Departures from ({source})", entry.cls.__doc__ or "")
