"""python -m benchmarks NAME [OPTIONS]: run benchmarks/NAME.py, which prints one table; --threads N is for all libraries."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from pathlib import Path

from benchmarks._smoke import VARIABLE

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py") if not path.stem.startswith("_"))


def main() -> int:
    name, options = "".join(sys.argv[1:2]), sys.argv[2:]
    limit_threads(options)
    os.environ.setdefault("MINICAFFE_LOOPS", "numpy")  # unless a table runs a contender with compiled loops
    if name == "smoke":
        os.environ[VARIABLE] = "1"
    run = importlib.import_module(f"benchmarks.{name}").main if name in NAMES else None
    takes_options = run is not None and bool(inspect.signature(run).parameters)
    if run is None or (options and not takes_options):
        print(f"usage: python -m benchmarks {{{', '.join(NAMES)}}} [--threads N] [--write] [--help]", file=sys.stderr)
        return 2
    run(*([options] if takes_options else []))
    return 0


def limit_threads(options: list[str]) -> None:
    """Set the number of threads, before a table imports numpy or torch."""
    place = options.index("--threads") + 1 if "--threads" in options else len(options)
    count = options[place] if place < len(options) and options[place].isdecimal() else "1"
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "MINICAFFE_NUM_THREADS"):
        os.environ[variable] = count


if __name__ == "__main__":
    sys.exit(main())
