"""Algorithms: one file per family, one class per algorithm."""

from shiftbed.algorithms.base import ERM, Algorithm, TrainingPlan, Wrapper, call_hook, has_hook
from shiftbed.algorithms.batches import Batches
from shiftbed.algorithms.registration import ALGORITHMS, AlgorithmEntry, load_code, register
from shiftbed.hparams import Space, choice, constant, log_uniform, uniform

__all__ = [
    "ALGORITHMS",
    "ERM",
    "Algorithm",
    "AlgorithmEntry",
    "Batches",
    "Space",
    "TrainingPlan",
    "Wrapper",
    "call_hook",
    "choice",
    "constant",
    "has_hook",
    "load_code",
    "log_uniform",
    "register",
    "uniform",
]
