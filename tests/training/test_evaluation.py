"""The numbers of a split against scikit-learn's and against values by hand."""

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, log_loss, recall_score, roc_auc_score

from shiftbed.training.evaluation import on_host, split_metrics


def numbers(logits, labels):
    return on_host({"one": split_metrics(torch.as_tensor(logits), torch.as_tensor(labels))})["one"]


@pytest.fixture(params=[2, 3, 7], ids=lambda classes: f"{classes} classes")
def example(request):
    random = np.random.default_rng(request.param)
    labels = np.concatenate([np.arange(request.param), random.integers(0, request.param, 200)])
    logits = random.normal(size=(len(labels), request.param)) + np.eye(request.param)[labels]
    return np.round(logits, 1), labels  # rounded: some scores are equal


def test_they_equal_scikit_learn_s(example):
    logits, labels = example
    ours, guesses = numbers(logits, labels), logits.argmax(1)
    assert ours["accuracy"] == pytest.approx((guesses == labels).mean())
    assert ours["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, guesses))
    assert ours["macro_f1"] == pytest.approx(f1_score(labels, guesses, average="macro"))
    assert ours["loss"] == pytest.approx(log_loss(labels, torch.tensor(logits).softmax(1).numpy()))
    assert ours["count"] == len(labels)
    assert ours["class_counts"] == np.bincount(labels).tolist()
    assert ours["class_correct"] == np.bincount(labels[guesses == labels], minlength=logits.shape[1]).tolist()
    recalls = np.array(ours["class_correct"]) / np.array(ours["class_counts"])
    assert ours["worst_class"] == pytest.approx(recalls.min())
    if logits.shape[1] == 2:
        assert ours["auroc"] == pytest.approx(roc_auc_score(labels, logits[:, 1] - logits[:, 0]))
    else:
        assert "auroc" not in ours


def test_classes_without_examples_are_left_out_of_means():
    ours = numbers([[5.0, 0.0, 0.0], [5.0, 0.0, 0.0], [0.0, 5.0, 0.0]], [0, 1, 1])
    assert ours["balanced_accuracy"] == pytest.approx((1 + 0.5) / 2)
    assert ours["worst_class"] == 0.5
    assert ours["class_counts"] == [1, 2, 0]


@pytest.mark.parametrize("present", [(0, 2), (1,)], ids=["a class is absent", "one class alone"])
@pytest.mark.parametrize("classes", [2, 4])
def test_with_absent_classes_they_equal_scikit_learn_s_over_those_present(present, classes):
    random = np.random.default_rng(classes)
    labels = random.choice([label for label in present if label < classes], 60)
    logits = random.normal(size=(60, classes)) + np.eye(classes)[labels]
    ours, guesses, known = numbers(logits, labels), logits.argmax(1), np.unique(labels)
    assert len(np.unique(guesses)) == classes, "absent ones are guessed too"
    recalls = recall_score(labels, guesses, labels=known, average=None)
    assert ours["balanced_accuracy"] == pytest.approx(recalls.mean())
    assert ours["worst_class"] == pytest.approx(recalls.min())
    assert ours["macro_f1"] == pytest.approx(f1_score(labels, guesses, labels=known, average="macro"))
    assert ours.get("auroc", 0.5) == 0.5, "not defined for one class"


def test_calibration_error_by_hand():
    # Confidences 0.9 (right) and 0.9 (wrong) share a bin: |0.9 − 0.5|; 0.6 (right) has its own: |0.6 − 1|.
    logits = np.log([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]])
    assert numbers(logits, [0, 1, 1])["calibration_error"] == pytest.approx((2 * 0.4 + 1 * 0.4) / 3)
    sure = numbers([[100.0, -100.0]], [0])
    assert sure["calibration_error"] == pytest.approx(0) and sure["auroc"] == 0.5


def test_outputs_that_are_not_numbers_stay_visible():
    assert np.isnan(numbers([[float("nan"), 0.0]], [1])["loss"])
