"""python -m benchmarks NAME: run benchmarks/NAME.py, a table of ratios taken side by side in one run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py") if not path.stem.startswith("_"))


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in NAMES:
        print(f"usage: python -m benchmarks {{{', '.join(NAMES)}}}", file=sys.stderr)
        return 2
    importlib.import_module(f"benchmarks.{sys.argv[1]}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
