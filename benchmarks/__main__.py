"""python -m benchmarks NAME [OPTIONS]: run benchmarks/NAME.py, a table of one run; one thread each on the CPU."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before a table imports numpy

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py") if not path.stem.startswith("_"))


def main() -> int:
    name, options = "".join(sys.argv[1:2]), sys.argv[2:]
    run = importlib.import_module(f"benchmarks.{name}").main if name in NAMES else None
    takes_options = run is not None and bool(inspect.signature(run).parameters)
    if run is None or (options and not takes_options):
        print(f"usage: python -m benchmarks {{{', '.join(NAMES)}}} [options of gpu]", file=sys.stderr)
        return 2
    run(*([options] if takes_options else []))
    return 0


if __name__ == "__main__":
    sys.exit(main())
