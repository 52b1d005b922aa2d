"""Data-parallel training on MPI: the cost of the exchange with ranks on this machine, and a model of more machines.

    python -m benchmarks scale_mpi [--net "ZF end to end=train.prototxt" ...] [--ranks 1,2] [--steps 4] [--write]

Images of 600 x 1000, one per rank and iteration, one thread per rank. Steps with and without the exchange take turns in the
same ranks; the seconds are medians of the slowest rank. "not hidden": the wait of rank 0 after its backward pass. Efficiency:
images per second of N ranks over N times those of one. --write: to docs/scaling.md.

The model, for N workers of one image: T = compute + max(last bucket's exchange, exchange - backward), where an exchange
of b bytes in k buckets takes 2 (N-1)/N b / bandwidth + 2 (N-1) k latency (a ring).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks._lines import lines
from benchmarks._report import DOCS, machine, named_files, options, put, table

ROOT = Path(__file__).parents[1]
DEFAULT = {"shapes R-FCN": ROOT / "examples/shapes/rfcn/train.prototxt"}
NETWORKS = {"10 Gbit/s, 30 us": (1.25e9, 30e-6), "100 Gbit/s, 5 us": (12.5e9, 5e-6)}
WORKERS = (8, 16, 32, 64, 128, 256, 512, 1024)
"""Of the curve."""
SHOWN = (16, 64, 256, 1024)
"""Of the table."""
HEADS = ("net", "ranks", "ms without", "ms with", "not hidden ms", "MB exchanged", "images/s", "efficiency")
BEGIN, END = "<!-- python -m benchmarks scale_mpi -->", "<!-- end of the scale_mpi table -->"
Found = dict[str, float]


def main(arguments: Sequence[str] = ()) -> None:
    parser = options("scale_mpi", __doc__ or "")
    parser.add_argument("--net", action="append", default=[], metavar="NAME=FILE", help="a detection net's train prototxt")
    parser.add_argument("--ranks", default="1,2", help="numbers of ranks, at most the cores (1 is always measured)")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--kept", type=Path, help="a JSON file that collects the measurements to show")
    given = parser.parse_args(arguments)
    kept: dict[str, dict[str, Found]] = json.loads(given.kept.read_text()) if given.kept and given.kept.exists() else {}
    for name, file in (named_files(given.net) or DEFAULT).items():
        counts = [int(count) for count in given.ranks.split(",") if count]
        for count in dict.fromkeys(counts if "1" in kept.get(name, {}) else [1, *counts]):
            kept.setdefault(name, {})[str(count)] = steps(file, count, given.steps)
            print(" | ".join(row(name, count, kept[name])), flush=True)
            if given.kept:
                given.kept.write_text(json.dumps(kept))
    text = report(kept)
    print(text)
    if given.write:
        put(DOCS / "scaling.md", BEGIN, END, f"{text}\n\nTaken on {machine()}.")
        picture = {f"{name}, {network}": curve(found["1"], network) for name, found in kept.items() for network in NETWORKS}
        (DOCS / "images" / "scale_mpi.svg").write_text(lines(picture, "workers", "speed-up"), encoding="utf-8")


def steps(file: Path, count: int, number: int) -> Found:
    """Return the measurements of the ranks."""
    found = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    words = [str(found), "--oversubscribe", "--bind-to", "none", "-n", str(count), sys.executable, "-m"]
    words += ["benchmarks._mpi_steps", str(file.absolute()), str(number)]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    done = subprocess.run(words, cwd=ROOT, env=os.environ | root, check=False, capture_output=True, text=True)
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    if not results:
        raise SystemExit(f"{' '.join(words)}:\n{done.stdout}{done.stderr}")
    return dict(json.loads(results[0].removeprefix("RESULT")))


def row(name: str, count: int, found: dict[str, Found]) -> list[str]:
    one, here = found["1"], found[str(count)]
    cells = [name, str(count), f"{1e3 * here['without']:.0f}", f"{1e3 * here['with']:.0f}"]
    if count == 1:
        return [*cells, "", "0", f"{1 / one['without']:.2f}", "1"]
    cells += [f"{1e3 * here['waited']:.1f}"]
    exchanged = 2 * (count - 1) / count * here["bytes"] / 1e6
    return [*cells, f"{exchanged:.1f}", f"{count / here['with']:.2f}", f"{one['without'] / here['with']:.2f}"]


def report(kept: dict[str, dict[str, Found]]) -> str:
    """Both tables."""
    rows = [row(name, int(count), found) for name, found in kept.items() for count in sorted(found, key=int)]
    heads = ["net", "network", *map(str, SHOWN)]
    model = [
        [name, network, *(f"{speed_up / n:.2f}" for n, speed_up in curve(found["1"], network) if n in SHOWN)]
        for name, found in kept.items()
        for network in NETWORKS
    ]
    return f"{table(HEADS, rows)}\n\nComputed efficiency, by workers:\n\n{table(heads, model)}"


def curve(one: Found, network: str) -> list[tuple[float, float]]:
    """Return the model's (workers, speed-up)."""
    return [(n, n * one["without"] / (one["without"] + exposed(one, n, *NETWORKS[network]))) for n in WORKERS]


def exposed(one: Found, count: int, bandwidth: float, latency: float) -> float:
    """Seconds of the exchange that the backward pass does not hide."""

    def exchange(size: float, buckets: float) -> float:
        return 2 * (count - 1) / count * size / bandwidth + 2 * (count - 1) * buckets * latency

    return max(exchange(one["last"], 1), exchange(one["bytes"], one["buckets"]) - one["backward"])


if __name__ == "__main__":
    main(sys.argv[1:])
