"""python -m benchmarks NAME: run benchmarks/NAME.py, a table of ratios taken side by side in one run, one thread each."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before a table imports numpy

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py") if not path.stem.startswith("_"))


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in NAMES:
        print(f"usage: python -m benchmarks {{{', '.join(NAMES)}}}", file=sys.stderr)
        return 2
    importlib.import_module(f"benchmarks.{sys.argv[1]}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
