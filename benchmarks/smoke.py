"""Every table once, with small inputs, one turn and no peers: whether the benchmarks run. No time means anything.

Without those that need more: a GPU, Ray, MPI, a Caffe.
"""

from __future__ import annotations

import importlib

TABLES = ("conv", "deformable", "forks", "live", "load", "nets", "roi", "scale", "start", "trace", "train")


def main() -> None:
    for name in TABLES:
        print(f"\n{name}")
        importlib.import_module(f"benchmarks.{name}").main()
