"""Algorithms: one file per family, one class per algorithm."""

from shiftbed.algorithms.base import ALGORITHMS, ERM, Algorithm, AlgorithmEntry, load_code, register
from shiftbed.algorithms.batches import Batches
from shiftbed.hparams import Space, choice, constant, log_uniform

__all__ = [
    "ALGORITHMS",
    "ERM",
    "Algorithm",
    "AlgorithmEntry",
    "Batches",
    "Space",
    "choice",
    "constant",
    "load_code",
    "log_uniform",
    "register",
]
