"""Tables of times: as Markdown, between markers in docs/performance.md, row by row, and as a picture.

The first column of times is minicaffe's, with NumPy alone; where minicaffe has two, the second is with compiled loops (the
extra `fast`). The others have the ratios to these in brackets: above 1 minicaffe is faster.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks._history import HISTORY, Entry, Now, append, picture_of, read
from benchmarks._picture import bars

DOCS = Path(__file__).parents[1] / "docs"
PERFORMANCE = DOCS / "performance.md"
HISTORY_PICTURE = "benchmark_history.svg"
PLAIN, FAST = OURS = ("minicaffe", "minicaffe, fast")
"""minicaffe's contenders: NumPy alone, and with compiled loops."""


@dataclass
class Row:
    """keys: name the row; times: contender -> seconds (the first is the reference); more: the last cells."""

    keys: tuple[str, ...]
    times: dict[str, float]
    more: tuple[str, ...] = ()


@dataclass
class Table:
    """One benchmark's table. speedup: a ratio is the first time over this one, not this one over the first."""

    name: str
    keys: tuple[str, ...]
    contenders: tuple[str, ...]
    more: tuple[str, ...] = ()
    speedup: bool = False
    rows: list[Row] = field(default_factory=list)

    def heads(self) -> list[str]:
        first, *others = self.contenders
        return [*self.keys, f"{first} ms", *others, *self.more]

    def cells(self, row: Row) -> list[str]:
        first, *others = (self._cell(row, name) for name in self.contenders)
        return [*row.keys, first, *others, *row.more]

    def _cell(self, row: Row, name: str) -> str:
        if name not in row.times:
            return ""
        ratios = " / ".join(f"{ratio:.2f}" for ratio in self.ratios(row, name))
        return milliseconds(row.times[name]) + (f" ({ratios})" if ratios else "")

    def ratios(self, row: Row, name: str) -> list[float]:
        """Return a peer's time over minicaffe's, with NumPy alone and with compiled loops if timed; or its speed-up."""
        ours = [other for other in (self.contenders[0], FAST) if other in row.times]
        if name in ours:
            return []
        ratios = [row.times[name] / row.times[other] for other in ours]
        return [1 / ratio for ratio in ratios] if self.speedup else ratios

    def add(self, row: Row) -> None:
        """Print and keep a row."""
        if not self.rows:
            print(" | ".join(self.heads()))
        self.rows.append(row)
        print(" | ".join(self.cells(row)), flush=True)

    def write(self, path: Path = PERFORMANCE, log: Path = HISTORY) -> None:
        """Write the rows between the table's markers, replacing those with the same keys, and redraw the picture; add the
        ratios to the history, and redraw its picture."""
        begin, end = markers(self.name)
        old = between(path, begin, end)
        kept = {tuple(cells[: len(self.keys)]): cells for cells in parsed(old, self.heads())}
        kept |= {row.keys: self.cells(row) for row in self.rows}
        picture = path.parent / "images" / f"benchmark_{self.name}.svg"
        times = len(self.keys) + len(self.contenders)  # later columns are not times
        bar = bars(self.heads()[:times], [cells[:times] for cells in kept.values()], len(self.keys))
        picture.write_text(bar, encoding="utf-8")
        parts = [table(self.heads(), kept.values()), f"![as bars](images/{picture.name})", f"Taken on {machine()}."]
        put(path, begin, end, "\n\n".join(parts))
        append(log, self.entries())
        if history := read(log):
            (path.parent / "images" / HISTORY_PICTURE).write_text(picture_of(history), encoding="utf-8")

    def entries(self) -> list[Entry]:
        """Return the rows' ratios, for the history; none of a table of speed-ups."""
        here = Now.of(processor())
        names = [] if self.speedup else [name for name in self.contenders if name not in OURS]
        found = []
        for row in self.rows:
            given = dict(zip(self.keys, row.keys))
            threads = given.pop("threads", "")
            for name in names:
                if ratios := self.ratios(row, name) if name in row.times else []:
                    plain, fast = (*ratios, None)[:2]
                    found.append(Entry(*here, threads, self.name, ", ".join(given.values()), name, plain, fast))
        return found


def milliseconds(seconds: float) -> str:
    """Three significant digits."""
    ms = 1e3 * seconds
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.3g}"


def markers(name: str) -> tuple[str, str]:
    return f"<!-- python -m benchmarks {name} -->", f"<!-- end of the {name} table -->"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def parsed(text: str, heads: Sequence[str]) -> list[list[str]]:
    """Return the rows of a table with these heads; none if its heads differ."""
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if line.startswith("|")]
    rows = [row + [""] * (len(heads) - len(row)) for row in rows]
    return rows[2:] if rows and rows[0] == list(heads) else []


def between(path: Path, begin: str, end: str) -> str:
    """Return the text between two markers of a document."""
    _, found, rest = path.read_text(encoding="utf-8").partition(begin)
    text, also, _ = rest.partition(end)
    if not found or not also:
        raise SystemExit(f"{path}: it lacks the lines {begin} and {end}")
    return text


def put(path: Path, begin: str, end: str, text: str) -> None:
    """Replace the text between two markers of a document."""
    between(path, begin, end)
    before, _, rest = path.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def machine() -> str:
    """Return the processor, the number of cores, and the relevant versions."""
    from minicaffe.cli.doctor import blas_name, numpy_config

    names = ("numba", "onnxruntime", "torch", "torchvision", "opencv-python-headless")
    versions = [f"NumPy {np.__version__} ({blas_name(numpy_config())})", *filter(None, map(_version, names))]
    return f"{processor()}, {', '.join(versions)}"


def processor() -> str:
    """Return the number of cores and the processor."""
    from minicaffe.cli.doctor import cpu_name
    from minicaffe.threads import available_cores

    instructions = "AVX-512" if "avx512" in _flags() else "AVX2" if "avx2" in _flags() else platform.machine()
    return f"{available_cores()} cores of {cpu_name()} ({instructions})"


def _flags() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""


def _version(name: str) -> str:
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return ""


def options(name: str, about: str) -> argparse.ArgumentParser:
    """Return the options of every table."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {name}", description=about)
    parser.add_argument("--threads", type=int, default=1, help="for all libraries (default 1)")
    parser.add_argument("--rows", default="", metavar="TEXT", help="only rows whose name contains TEXT")
    parser.add_argument("--write", action="store_true", help="write the rows to docs/performance.md")
    return parser


def named_files(given: Sequence[str]) -> dict[str, Path]:
    """Return the nets of --net NAME=FILE options; exits if a file is missing."""
    files = {}
    for text in given:
        name, equals, file = text.partition("=")
        if not equals or not Path(file).is_file():
            raise SystemExit(f"--net {text}: write it as NAME=FILE, with an existing file")
        files[name] = Path(file)
    return files
