"""Every algorithm with its idea switched off is ERM: where this is shown, and the ideas no hyperparameter switches off.

The list names a test of this folder for each algorithm; one that is registered tomorrow must be listed tomorrow.
"""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from shiftbed.algorithms import features, gradients
from shiftbed.algorithms.registration import BUILT_IN
from tests.algorithms.common import assert_same_as_erm, build, largest_difference, train

LISTED = {
    "ADRMX": "contrastive::without_its_terms_and_with_a_silent_second_head_a_step_of_adrmx_is_one_of_erm",
    "ANDMask": "gradients::andmask_without_its_threshold_is_erm_and_with_it_is_not",
    "ARM": "ablations::arm_with_a_silent_context_network_is_erm",
    "AdaClust": "clustering::adaclust_without_embeddings_is_erm",
    "CAD": "contrastive::without_its_weight_it_is_erm_and_with_it_not",
    "CDANN": "adversarial::with_lambda_0_the_generator_s_turns_are_steps_of_erm",
    "CORAL": "alignment::switched_off_it_is_erm_and_switched_on_it_is_not",
    "CausIRL_CORAL": "distributions::without_its_weight_causirl_is_erm_and_with_it_not",
    "CausIRL_MMD": "distributions::without_its_weight_causirl_is_erm_and_with_it_not",
    "CondCAD": "contrastive::without_its_weight_it_is_erm_and_with_it_not",
    "DANN": "adversarial::with_lambda_0_the_generator_s_turns_are_steps_of_erm",
    "EQRM": "robust::eqrm_is_erm_during_its_burn_in_and_not_after_it",
    "ERDG": "adversarial::erdg_switched_off_is_erm_and_switched_on_is_not",
    "ERMPlusPlus": "erm_plus_plus::without_a_start_and_an_average_it_is_erm_and_with_them_it_is_not",
    "EoA": "averaging::eoa_before_its_start_is_erm",
    "FACT": "mixing::fact_switched_off_is_erm_and_by_default_it_is_not",
    "Fish": "fish_and_sandmask::fish_on_one_domain_with_a_rate_of_one_is_erm",
    "Fishr": "gradients::fishr_is_erm_before_annealing_and_without_its_weight_and_else_is_not",
    "FrozenStages": "tuning::no_frozen_stages_are_erm",
    "GroupDRO": "golden::switched_off_it_is_erm_and_switched_on_it_is_not",
    "IB_ERM": "bottleneck::without_their_penalties_they_are_erm_and_with_them_they_are_not",
    "IB_IRM": "bottleneck::without_their_penalties_they_are_erm_and_with_them_they_are_not",
    "IGA": "gradients::iga_without_its_penalty_is_erm_and_with_it_is_not",
    "IRM": "golden::switched_off_it_is_erm_and_switched_on_it_is_not",
    "JiGen": "self_supervised::jigen_switched_off_is_erm_and_by_default_it_is_not",
    "LPFT": "tuning::lpft_without_probing_is_erm",
    "LinearProbe": "tuning::lpft_without_probing_is_erm",
    "MLDG": "ablations::mldg_without_an_inner_step_is_erm",
    "MMD": "alignment::switched_off_it_is_erm_and_switched_on_it_is_not",
    "MMLD": "clustering::mmld_in_its_first_epoch_is_erm_with_a_discriminator_that_learns",
    "MTL": "ablations::mtl_whose_embeddings_stay_zero_is_erm_on_the_summed_risk",
    "MixStyle": "mixing::mixstyle_that_is_never_active_is_erm_and_by_default_it_is_not",
    "Mixup": "golden::switched_off_it_is_erm_and_switched_on_it_is_not",
    "RCS": "alignment::switched_off_it_is_erm_and_switched_on_it_is_not",
    "RDM": "distributions::rdm_is_erm_up_to_its_annealing_step_and_not_after_it",
    "RSC": "ablations::rsc_whose_thresholds_nothing_reaches_is_erm",
    "SANDMask": "fish_and_sandmask::sandmask_without_a_threshold_and_with_a_large_k_is_erm",
    "SD": "regularizers::sd_without_its_weight_is_erm_to_the_bit_and_with_it_is_not",
    "SWAD": "ablations::swad_that_averages_single_steps_is_erm",
    "SagNet": "features::sagnet_without_styles_and_adversary_is_erm_and_by_default_it_is_not",
    "SelfReg": "regularizers::selfreg_of_equal_examples_in_every_class_is_erm",
    "StableNet": "reweighting::stablenet_switched_off_is_erm_and_switched_on_it_is_not",
    "TRM": "transfer_risk::before_its_start_trm_is_erm_and_then_it_is_not",
    "Transfer": "transfer::without_its_weight_transfer_by_gda_is_erm_by_gradient_descent",
    "URM": "urm::without_its_weight_and_bound_urm_is_erm_and_with_them_it_is_not",
    "VNE": "regularizers::vne_without_its_coefficient_is_erm_and_with_it_is_not",
    "VREx": "invariance::vrex_without_its_weight_is_erm_to_the_bit_and_with_it_is_not",
}


def test_every_algorithm_has_a_listed_ablation():
    assert set(LISTED) == BUILT_IN - {"ERM"}
    for place in LISTED.values():
        file, test = place.split("::")
        assert f"\ndef test_{test}(" in (Path(__file__).parent / f"test_{file}.py").read_text(), place


class Silent(nn.Module):
    """A context network that says nothing: the small network takes 0.5 from its inputs."""

    def forward(self, x):
        return torch.full_like(x[:, :1], 0.5)


def test_arm_with_a_silent_context_network_is_erm():
    algorithm, erm = build("ARM"), build("ERM")
    with torch.no_grad():
        for own, its in zip(algorithm.network.parameters(), erm.network.parameters(), strict=True):
            (own if own.shape == its.shape else own[:, :3]).copy_(its)
    algorithm.context_net = Silent()
    assert_same_as_erm(algorithm)


def test_mldg_without_an_inner_step_is_erm(monkeypatch):
    def stay(parameters, *_):
        return [parameter.detach().requires_grad_() for parameter in parameters]

    monkeypatch.setattr(gradients, "after_first_adam_step", stay)
    algorithm, erm = build("MLDG", 2, mldg_beta=1.0), build("ERM", 2)
    for one in (algorithm, erm):
        train(one, 5, sizes=(6, 6))
    assert largest_difference(algorithm, erm) < 1e-9


def test_mtl_whose_embeddings_stay_zero_is_erm_on_the_summed_risk():
    algorithm, erm = build("MTL", mtl_ema=0.0, optimizer="sgd", lr=0.01), build("ERM", optimizer="sgd", lr=0.03)
    with torch.no_grad():
        for own, its in zip(algorithm.parameters(), erm.parameters(), strict=True):
            own.zero_()
            (own if own.shape == its.shape else own[:, :128]).copy_(its)
    for one in (algorithm, erm):
        train(one, 5)
    assert largest_difference(algorithm, erm) < 1e-9


def test_rsc_whose_thresholds_nothing_reaches_is_erm(monkeypatch):
    monkeypatch.setattr(features, "percentile", lambda values, level: torch.full(values.shape[:-1], math.inf))
    assert_same_as_erm(build("RSC"))


@pytest.mark.parametrize("steps", [1, 5])
def test_swad_that_averages_single_steps_is_erm(steps):
    """Where validation finds no valley, the prediction is the mean of the last segment, which here is one step."""
    algorithm, erm = build("SWAD"), build("ERM")
    for step in range(steps):
        train(algorithm, 1, first=step)
        algorithm.evaluated({"one": {"loss": 1 / (1 + step)}})
    train(erm, steps)
    assert largest_difference(algorithm, erm) == 0
