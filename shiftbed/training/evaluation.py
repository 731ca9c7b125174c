"""What is said of a split: accuracy, loss, count, and how the errors are spread."""

from typing import Any

import torch
import torch.nn.functional as F

CALIBRATION_BINS = 15


def split_metrics(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """The numbers of one split, as tensors, so that a whole evaluation waits for the device once.

    Classes without an example in the split are left out of the means over classes.

    Args:
        logits: One row per example.
        labels: Their classes.
    """
    logits = logits.double()
    classes = logits.shape[1]
    predicted = logits.argmax(1)
    right = predicted == labels
    counts = _sum_by(labels, torch.ones_like(logits[:, 0]), classes)
    correct = _sum_by(labels, right.double(), classes)
    guesses = _sum_by(predicted, torch.ones_like(logits[:, 0]), classes)
    present = counts > 0
    recall = correct / counts.clamp(min=1)
    f1 = 2 * correct / (counts + guesses).clamp(min=1)
    share = present.double() / present.sum()
    probabilities = logits.softmax(1)
    metrics = {
        "accuracy": right.double().mean(),
        "half_accuracy": right[::2].double().mean(),  # of every other example: the free half of a reusable holdout
        "loss": F.cross_entropy(logits, labels),
        "count": torch.tensor(len(labels)),
        "balanced_accuracy": recall @ share,
        "macro_f1": f1 @ share,
        "worst_class": torch.where(present, recall, 1.0).min(),
        "confidence": probabilities.amax(1).mean(),
        "calibration_error": _calibration_error(probabilities.amax(1), right),
        "class_counts": counts.long(),
        "class_correct": correct.long(),
    }
    if classes == 2:
        metrics["auroc"] = _auroc(logits[:, 1] - logits[:, 0], labels, counts)
    return metrics


def _sum_by(group: torch.Tensor, values: torch.Tensor, groups: int) -> torch.Tensor:
    """The sum of the values of each group; a product, since a GPU adds by index in no fixed order."""
    member = group[:, None] == torch.arange(groups, device=group.device)
    return member.to(values.dtype).T @ values


def _calibration_error(confidence: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The expected calibration error: the mean gap of confidence and accuracy, over bins of equal width."""
    bins = (confidence * CALIBRATION_BINS).long().clamp(0, CALIBRATION_BINS - 1)
    gaps = _sum_by(bins, confidence - right.double(), CALIBRATION_BINS)
    return gaps.abs().sum() / len(confidence)


def _auroc(scores: torch.Tensor, labels: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The chance that an example of class 1 scores above one of class 0, ties counting half; 0.5 without both."""
    ordered = scores.sort().values
    below = torch.searchsorted(ordered, scores)
    up_to = torch.searchsorted(ordered, scores, right=True)
    ranks = (below + up_to + 1).double() / 2
    won = (ranks * labels).sum() - counts[1] * (counts[1] + 1) / 2
    pairs = counts[0] * counts[1]
    return torch.where(pairs > 0, won / pairs.clamp(min=1), 0.5)


def on_host(metrics: dict[str, dict[str, torch.Tensor]]) -> dict[str, dict[str, Any]]:
    """The metrics of all splits as numbers and lists, brought over in one copy."""
    flat = [value.reshape(-1).double().to("cpu", non_blocking=True) for m in metrics.values() for value in m.values()]
    values = iter(_synchronised(flat))
    return {split: {name: _number(value, next(values)) for name, value in m.items()} for split, m in metrics.items()}


def _synchronised(tensors: list[torch.Tensor]) -> list[list[float]]:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.current_stream().synchronize()
    return [tensor.tolist() for tensor in tensors]


def _number(tensor: torch.Tensor, values: list[float]) -> Any:
    numbers = values if tensor.is_floating_point() else [int(value) for value in values]
    return numbers if tensor.dim() else numbers[0]
