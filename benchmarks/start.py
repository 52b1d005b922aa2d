"""Seconds to start Python and import nothing, NumPy or minicaffe, and to run `minicaffe --help`.

Bytecode is cached, as for an installed package; the first start, which writes it, is not counted.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks._smoke import usual

TURNS = usual(11, 2)
COMMANDS = {
    "python, nothing imported": ["-c", "pass"],
    "import numpy": ["-c", "import numpy"],
    "import minicaffe": ["-c", "import minicaffe"],
    "minicaffe --help": ["-m", "minicaffe", "--help"],
}


def main() -> None:
    """Run each command in turn, 11 times, the first not counted; print medians."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    left_out = ("PYTHONDONTWRITEBYTECODE", "MINICAFFE_NUM_THREADS")
    with tempfile.TemporaryDirectory() as folder:
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        environment = {**kept, "PYTHONPYCACHEPREFIX": folder}
        for _ in range(TURNS):
            for name, arguments in COMMANDS.items():
                start = time.perf_counter()
                subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
                times[name].append(time.perf_counter() - start)
    bare = statistics.median(times["python, nothing imported"][1:])
    print(f"{'':28} seconds  beyond Python's start")
    for name, taken in times.items():
        median = statistics.median(taken[1:])
        print(f"{name:28} {median:7.3f}  {median - bare:7.3f}")


if __name__ == "__main__":
    main()
