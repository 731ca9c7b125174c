"""SWAD and EoA against their definitions, on weights that a test chooses."""

import copy
import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import update_bn

from shiftbed.algorithms import ALGORITHMS, ERM, Algorithm
from shiftbed.errors import AlgorithmError
from tests.algorithms.common import (
    CLASSES,
    SHAPE,
    assert_same_as_erm,
    build,
    default_hparams,
    largest_difference,
    make_batches,
    train,
)

# The losses of algorithms.md's vector: the valley is from segment 5 to 11.
VALLEY = [2, 1.5, 1, 0.8, 0.6, 0.5, 0.55, 0.52, 0.54, 0.53, 0.56, 0.6, *[0.9] * 8]


class Walk(Algorithm):
    """One weight, which every update moves to the next place of a path."""

    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.place = nn.Parameter(torch.tensor([hparams["path"][0]]))

    def update(self, minibatches, unlabeled=None):
        self.step += 1
        with torch.no_grad():
            self.place.fill_(self.hparams["path"][self.step])
        return {"loss": float(self.step)}

    def predict(self, x):
        return self.place.expand(len(x), 1)


def around(name, inner, **hparams):
    """A wrapper around a class of the test, in float64."""
    cls = type(f"{name}({inner.__name__})", (ALGORITHMS[name].cls,), {"inner_class": inner})
    torch.manual_seed(0)
    return cls(SHAPE, CLASSES, 3, default_hparams(name, **hparams)).double()


def where(algorithm):
    return algorithm.predict(torch.zeros(1)).item()


def descend(losses, *, lengths=None, places=None):
    """SWAD on segments of given losses; yields the object after every evaluation.

    Segment k stays at 2^k, so that every set of segments has a mean of its own.
    """
    lengths = lengths or [2] * len(losses)
    places = places or [2.0**k for k in range(len(losses))]
    path = [0.0] + [place for place, length in zip(places, lengths, strict=True) for _ in range(length)]
    swad = around("SWAD", Walk, path=path)
    for loss, length in zip(losses, lengths, strict=True):
        for _ in range(length):
            swad.update(make_batches(0))
        swad.evaluated({"a": {"loss": loss, "accuracy": 0.5, "count": 10}})
        yield swad


def mean_of(segments):
    return sum(2.0**k for k in segments) / len(segments)


def test_swad_averages_each_segment_of_the_valley_once():
    for number, swad in enumerate(descend(VALLEY)):
        assert swad.ended == (number >= 17)
    assert swad.threshold == pytest.approx(0.6803, abs=5e-5)
    assert where(swad) == pytest.approx(mean_of(range(5, 12)), rel=1e-14)


def test_swad_before_the_valley_is_the_last_segment():
    for number, swad in enumerate(descend([5, 4, 3, 2, 1])):
        assert where(swad) == 2.0**number
        assert swad.threshold is None


def test_swad_of_a_valley_without_end_goes_to_the_last_segment_at_or_below_the_threshold():
    *_, swad = descend([*VALLEY[:12], 0.9, 0.6, 0.9])
    assert not swad.ended
    assert where(swad) == pytest.approx(mean_of(range(5, 14)), rel=1e-14)


def test_swad_counts_segments_above_the_threshold_between_two_below_it():
    *_, swad = descend([*VALLEY[:12], *[0.9] * 5, 0.6, *[0.9] * 6])
    assert swad.ended
    assert where(swad) == pytest.approx(mean_of(range(5, 18)), rel=1e-14)


def test_swad_adds_earlier_segments_that_lie_below_the_threshold_from_end_to_end():
    *_, swad = descend([2, 1.5, 1, 0.62, 0.6, 0.5, 0.55, 0.52])
    assert where(swad) == pytest.approx(mean_of([4, 5, 6, 7]), rel=1e-14)


@pytest.mark.parametrize("least", [0, 1, 2, 3])
def test_swad_counts_segments_once_when_the_minimum_comes_early(least):
    *_, swad = descend([*[9.0, 8.0, 7.0][:least], 1, *[1.1] * 5])
    assert where(swad) == pytest.approx(mean_of(range(least, least + 6)), rel=1e-14)


def valley(losses, n_s=3, n_e=6, r=0.3):
    """The segments SWAD averages after all of these losses, by the windows of the paper."""
    starts = [k for k in range(len(losses) - n_s + 1) if losses[k] == min(losses[k : k + n_s])]
    if not starts:
        return [len(losses) - 1]
    first = starts[0]
    threshold = (1 + r) * sum(losses[first : first + n_s]) / n_s
    dead = [k for k in range(first + n_e, len(losses)) if min(losses[k - n_e + 1 : k + 1]) > threshold]
    last = max(k for k in range(first, len(losses)) if min(losses[k:]) <= threshold)
    end = dead[0] - n_e if dead else last
    known = range(max(0, first + n_s - n_e), first + 1)
    below = [k for k in known if max(losses[k : first + 1]) <= threshold]
    return list(range(min(below[1:], default=first), end + 1))


@settings(max_examples=60)
@given(st.lists(st.sampled_from([1.0, 1.1, 1.2, 1.4, 1.6, 2.0, 3.0]), min_size=1, max_size=24))
def test_swad_is_at_every_evaluation_what_it_would_be_if_training_ended_there(losses):
    for number, swad in enumerate(descend(losses)):
        assert where(swad) == pytest.approx(mean_of(valley(losses[: number + 1])), rel=1e-12)


def test_swad_weights_iterates_not_segments():
    *_, swad = descend([1, 1.1, 1.2], lengths=[1, 3, 2])
    assert where(swad) == pytest.approx((1 * 1 + 3 * 2 + 2 * 4) / 6, rel=1e-14)


def test_swad_averages_the_iterates_within_a_segment():
    swad = around("SWAD", Walk, path=[0.0, 1.0, 5.0, 6.0])
    for expected in (1.0, 3.0, 4.0):
        swad.update(make_batches(0))
        assert where(swad) == pytest.approx(expected, rel=1e-14)  # also before the first evaluation
    swad.evaluated({"a": {"loss": 1.0}})
    assert where(swad) == pytest.approx(4.0, rel=1e-14)


def test_swad_of_constant_weights_is_these_weights():
    for swad in descend(VALLEY, places=[0.1] * len(VALLEY)):
        assert where(swad) == 0.1


def test_swad_s_loss_is_the_mean_over_domains_whatever_their_sizes():
    swad = around("SWAD", Walk, path=[0.0] * 9)
    for small, large in ((1.0, 3.0), (2.0, 4.0), (2.0, 4.0)):
        swad.update(make_batches(0))
        swad.evaluated({"a": {"loss": small, "count": 1}, "b": {"loss": large, "count": 99}})
    assert swad.threshold == pytest.approx(1.3 * (2 + 3 + 3) / 3)


def test_swad_does_nothing_once_training_has_ended():
    *_, swad = descend(VALLEY)
    before = swad.inner.step
    metrics = swad.update(make_batches(0))
    assert swad.inner.step == before == 36
    assert metrics["loss"].item() == 36 and isinstance(metrics["loss"], torch.Tensor)


def test_swad_needs_held_out_images_of_the_training_domains():
    swad = build("SWAD")
    train(swad, 1)
    with pytest.raises(AlgorithmError, match="held-out images"):
        swad.evaluated({})


def test_swad_trains_as_the_algorithm_inside_and_predicts_otherwise():
    swad, erm = build("SWAD"), build("ERM")
    train(swad, 5)
    train(erm, 5)
    x = make_batches(1).x
    with torch.no_grad():
        assert torch.equal(swad.eval().current(x), erm.eval().predict(x))
        assert (swad.predict(x) - swad.current(x)).abs().max() > 1e-3
        assert torch.equal(swad.current(x), erm.predict(x)), "prediction leaves the weights being trained alone"


def walk_on(swad, first, last):
    """Steps with an evaluation after every second one: before, in and behind a valley."""
    for step in range(first, last):
        train(swad, 1, first=step)
        if step % 2:
            swad.evaluated({"a": {"loss": [3, 2, 2.2, 2.4, 9, 2, 9, 9, 9, 9, 9, 9, 9][step // 2]}})


@pytest.mark.parametrize("saved_at", [3, 10, 24])
def test_swad_saved_anywhere_continues_as_if_it_was_not(saved_at):
    one, two = build("SWAD"), build("SWAD", seed=1)
    walk_on(one, 0, saved_at)
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    two.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    for algorithm in (one, two):
        walk_on(algorithm, saved_at, 26)
    assert one.ended and two.ended
    assert largest_difference(one, two) == 0
    assert torch.equal(one.segment, two.segment)


class Normed(ERM):
    """ERM with a featurizer that has batch norm."""

    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.featurizer = nn.Sequential(nn.Flatten(), nn.Linear(768, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.ReLU())
        self.classifier = nn.Linear(8, num_classes)
        self.network = nn.Sequential(self.featurizer, self.classifier)
        self.optimizer = self.make_optimizer()


def test_swad_read_on_the_host_continues_where_its_weights_are():
    """Checkpoints are read on the host; a segment that stayed there could not be averaged with a GPU's weights."""
    swad = build("SWAD", dtype=torch.float32)
    swad.update(make_batches(0, dtype=torch.float32))
    swad.evaluated({"a": {"loss": 1.0}})
    elsewhere = build("SWAD", dtype=torch.float32).to("meta")
    elsewhere.set_extra_state(swad.get_extra_state())
    assert {mean.device.type for mean, _, _ in elsewhere.queue} == {"meta"}
    elsewhere.notes = torch.zeros(2)  # by its own choice not where the weights are
    again = build("SWAD", dtype=torch.float32).to("meta")
    again.set_extra_state(elsewhere.get_extra_state())
    assert again.notes.device.type == "cpu"
    swad.queue[0][0].zero_()
    here = build("SWAD", dtype=torch.float32)
    here.set_extra_state(swad.get_extra_state())
    assert here.queue[0][0] is not swad.queue[0][0], "nothing that both would change"


def averaged_copy(algorithm):
    """The network with the averaged weights, for tests that recompute what depends on them."""
    with algorithm.averaged():
        return copy.deepcopy(algorithm.inner.network)


def test_swad_recomputes_the_statistics_of_live_batch_norm():
    swad = around("SWAD", Normed, lr=1e-2)
    metrics = train(swad, 20)
    own = copy.deepcopy(swad.inner.featurizer[2].state_dict())
    swad.eval().evaluated({"a": {"loss": 1.0}})
    assert len(metrics) == 20 and not swad.recent
    network = averaged_copy(swad).eval()
    predicted = network(make_batches(50).x)
    assert torch.allclose(swad.predict(make_batches(50).x), predicted, atol=1e-12)
    network[0][3].p = 0.0  # update_bn turns dropout on; without it, it is an independent recomputation
    update_bn([make_batches(step % 10).x for step in range(4, 20)], network)
    assert torch.allclose(network.eval()(make_batches(50).x), predicted, atol=1e-10)
    for key, value in swad.inner.featurizer[2].state_dict().items():
        assert torch.equal(value, own[key]), "the network being trained keeps its own"
    assert swad.inner.featurizer[2].momentum == 0.1 and not swad.inner.featurizer[2].training


def test_swad_leaves_frozen_batch_norm_alone():
    class Frozen(Normed):
        def train(self, mode=True):
            super().train(mode)
            self.featurizer[2].eval()
            return self

    swad = around("SWAD", Frozen, lr=1e-2)
    train(swad, 3)
    assert not swad.recent
    swad.evaluated({"a": {"loss": 1.0}})
    norm = averaged_copy(swad)[0][2]
    assert norm.running_mean.abs().max() == 0 and (norm.running_var == 1).all()


def test_eoa_of_a_ramp_is_the_running_mean_from_its_start():
    eoa = around("EoA", Walk, path=[float(t) for t in range(200)])
    for step in range(1, 150):
        eoa.update(make_batches(0))
        assert where(eoa) == pytest.approx(step if step <= 100 else (100 + step) / 2, rel=1e-12)


def test_eoa_of_constant_weights_is_these_weights():
    eoa = around("EoA", Walk, path=[0.1] * 20, eoa_start=5)
    for _ in range(19):
        eoa.update(make_batches(0))
        assert where(eoa) == 0.1


def test_eoa_before_its_start_is_erm():
    assert_same_as_erm(build("EoA"))


def test_eoa_differs_from_erm_after_its_start_and_trains_the_same():
    eoa, erm = build("EoA", eoa_start=2), build("ERM")
    train(eoa, 5)
    train(erm, 5)
    assert largest_difference(eoa, erm) > 1e-3
    x = make_batches(1).x
    assert torch.equal(eoa.current(x), erm.predict(x))


def test_eoa_averages_the_statistics_of_batch_norm_too():
    eoa = around("EoA", Normed, eoa_start=1)
    seen = []
    for step in range(3):
        train(eoa, 1, first=step)
        seen.append(eoa.inner.featurizer[2].running_mean.clone())
    assert torch.allclose(averaged_copy(eoa)[0][2].running_mean, torch.stack(seen).mean(0), atol=1e-12)


def test_eoa_saved_and_loaded_continues_as_if_it_was_not():
    one, two = build("EoA", eoa_start=2), build("EoA", eoa_start=2, seed=1)
    train(one, 4)
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for algorithm in (one, two):
        train(algorithm, 2, first=4)
    assert largest_difference(one, two) == 0


@pytest.mark.parametrize("name", ["SWAD(CORAL)", "EoA(IRM)", "swad(linearprobe(erm))"])
def test_wrappers_wrap_other_algorithms_by_name(name):
    algorithm = build(name)
    train(algorithm, 3)
    assert torch.isfinite(algorithm.eval().predict(make_batches(0).x)).all()


@pytest.mark.parametrize(
    "name", ["EoA(SWAD)", "SWAD(EoA(CORAL))", "ERMPlusPlus(EoA)", "SWAD(FrozenStages(ERMPlusPlus))"]
)
def test_an_average_of_averages_is_refused(name):
    """What predicts with an average of its own predicts with it whatever weights are lent to it."""
    with pytest.raises(AlgorithmError, match=r"would average weights twice; leave one of the two out\.$|sets free"):
        ALGORITHMS[name]


def test_swad_s_threshold_is_lower_on_vlcs():
    assert ALGORITHMS["SWAD"].space("VLCS", "large")["swad_tolerance_ratio"].default == 0.2
    assert ALGORITHMS["SWAD"].space("PACS", "large")["swad_tolerance_ratio"].default == 0.3


def test_lent_weights_lie_in_memory_as_the_networks_own():
    """Compiled networks refuse others; an average is one long vector."""
    eoa = build("EoA", eoa_start=0).to(memory_format=torch.channels_last)
    for step in range(3):
        eoa.update(make_batches(step))
    strides = [weight.stride() for weight in eoa.weights()]
    assert any(len(stride) == 4 and stride[1] == 1 for stride in strides)
    with eoa.averaged():
        assert [weight.stride() for weight in eoa.weights()] == strides
        assert torch.equal(eoa.iterate(), eoa.average)
