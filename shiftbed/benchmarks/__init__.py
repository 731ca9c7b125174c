"""Benchmarks: each paper's whole experiment as data, run with one command beside its published numbers."""

from shiftbed.benchmarks.running import Outcome, benchmark, done_count, job_count, load, narrowed, request_of
from shiftbed.benchmarks.spec import Benchmark, benchmark_names, find, read

__all__ = [
    "Benchmark",
    "Outcome",
    "benchmark",
    "benchmark_names",
    "done_count",
    "find",
    "job_count",
    "load",
    "narrowed",
    "read",
    "request_of",
]
