"""Optimal transport between images and labels, solved in as many dimensions as there are classes."""

import numpy as np

SMOOTHING = (0.1, 0.03, 0.01, 0.003, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)  # the value is then exact to 1e-5 · ln K
STEPS = 30  # of Newton's at each smoothing; a few suffice
BALANCED = 1e-5  # how far the dealt shares may be from the wanted ones
LARGEST_DAMPING = 1e6


def transported_probability(probabilities: np.ndarray, shares: np.ndarray) -> float:
    """The mean probability of its label when labels with given shares are dealt to images as well as possible.

    It is COT's transport problem, max Σ Tᵢₖ Pᵢₖ with rows of T summing to 1/N and columns to the shares. Its dual,
    min over w of mean maxₖ(Pᵢₖ − wₖ) + Σ sharesₖ wₖ, has one price a class. It is minimised by Newton's method with a
    maximum that is smoothed less and less; any prices give an upper bound, and the last ones the value.

    Args:
        probabilities: N×K.
        shares: K, summing to 1.
    """
    prices = np.zeros(len(shares))
    for smoothing in SMOOTHING:
        prices = _newton(probabilities, shares, prices, smoothing)
    return float((probabilities - prices).max(axis=1).mean() + shares @ prices)


def _newton(probabilities: np.ndarray, shares: np.ndarray, prices: np.ndarray, smoothing: float) -> np.ndarray:
    """Prices that minimise the smoothed dual; steps are damped until they descend."""
    count, classes = probabilities.shape
    damping = 1e-5
    value, dealt = _smoothed(probabilities, shares, prices, smoothing)
    for _ in range(STEPS):
        gradient = shares - dealt.mean(axis=0)
        if np.abs(gradient).max() < BALANCED:
            break
        curvature = np.diag(dealt.mean(axis=0)) - dealt.T @ dealt / count
        while damping < LARGEST_DAMPING:
            # All prices may rise together: the ones forbid it.
            bent = (curvature + damping * np.eye(classes)) / smoothing + 1 / classes
            step = np.linalg.solve(bent, -gradient)
            moved = _smoothed(probabilities, shares, prices + step, smoothing)
            if moved[0] <= value + 1e-4 * (gradient @ step):
                break
            damping *= 5
        else:
            break
        prices, (value, dealt), damping = prices + step, moved, max(damping / 5, 1e-11)
    return prices


def _smoothed(
    probabilities: np.ndarray, shares: np.ndarray, prices: np.ndarray, smoothing: float
) -> tuple[float, np.ndarray]:
    """The dual with a soft maximum, and how it deals labels to each image."""
    worth = (probabilities - prices) / smoothing
    largest = worth.max(axis=1, keepdims=True)
    dealt = np.exp(worth - largest)
    total = dealt.sum(axis=1, keepdims=True)
    return float(smoothing * (largest + np.log(total)).mean() + shares @ prices), dealt / total
