"""Seconds of one core to start Python, NumPy and minicaffe, and to run a small net once with compiled loops installed.

Bytecode is cached, as for an installed package; the first start, which writes it, is not counted. The second table runs nets in
turns with Numba at hand, as a user's command does, and with MINICAFFE_LOOPS=numpy; its ratios are those of pairs of runs.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._smoke import usual

TURNS = usual(11, 2)
ROOT = Path(__file__).resolve().parent.parent
SMALL = ROOT / "examples/shapes/rfcn/test.prototxt"
ZOO = ROOT.parent / "shared/zoo"
"""Published models, beside the repository."""
COMMANDS = {
    "python, nothing imported": ["-c", "pass"],
    "import numpy": ["-c", "import numpy"],
    "import minicaffe": ["-c", "import minicaffe"],
    "minicaffe --help": ["-m", "minicaffe", "--help"],
    "minicaffe summary, a small net": ["-m", "minicaffe", "summary", str(SMALL)],
}


def main() -> None:
    """Run each command in turn, 11 times, the first not counted; print medians."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    left_out = ("PYTHONDONTWRITEBYTECODE", "MINICAFFE_NUM_THREADS", "MINICAFFE_LOOPS", "OPENBLAS_CORETYPE")
    with tempfile.TemporaryDirectory() as folder:
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        environment = {**kept, "PYTHONPYCACHEPREFIX": folder}
        for _ in range(TURNS):
            for name, arguments in COMMANDS.items():
                times[name].append(cpu_seconds(arguments, environment))
        bare = statistics.median(times["python, nothing imported"][1:])
        print(f"{'':32} seconds  beyond Python's start")
        for name, taken in times.items():
            median = statistics.median(taken[1:])
            print(f"{name:32} {median:7.3f}  {median - bare:7.3f}")
        print(f"\n{'minicaffe run, once':48} NumPy    with fast, in its time")
        for net in [SMALL, *sorted(ZOO.glob("*/*.prototxt"))]:
            if not any(word in net.stem for word in ("train_test", "routines")):  # they need a database, or inputs
                print_pairs(net, environment)


def print_pairs(net: Path, environment: dict[str, str]) -> None:
    """Run a net as often, with compiled loops at hand and without, and print the median of the ratios."""
    arguments = ["-m", "minicaffe", "run", str(net), "--random-weights"]
    ways = {"numpy": {**environment, "MINICAFFE_LOOPS": "numpy"}, "auto": environment}
    pairs = [{way: cpu_seconds(arguments, given) for way, given in ways.items()} for _ in range(TURNS)][1:]
    without = statistics.median(pair["numpy"] for pair in pairs)
    ratio = statistics.median(pair["auto"] / pair["numpy"] for pair in pairs)
    name = f"{net.parent.name}/{net.name}"
    print(f"{name:48} {without:7.3f}  {ratio:7.2f}")


def cpu_seconds(arguments: list[str], environment: dict[str, str]) -> float:
    """Return the seconds of all cores that a process of Python takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
