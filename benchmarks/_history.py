"""The ratios of each run of a table, kept in history.csv, so that a slowdown shows; and their picture.

A ratio is a peer's time over minicaffe's, both of one run: above 1 minicaffe is faster. Absolute times would tell how busy the
machine was.
"""

from __future__ import annotations

import csv
import datetime
import math
import subprocess
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from benchmarks._picture import COLOURS, FONT

HISTORY = Path(__file__).with_name("history.csv")
SLOWER = 0.9
"""A ratio below this part of the best one is a slowdown."""
WAYS = {"plain": "", "fast": " with compiled loops"}
YARDSTICKS = ("onnxruntime", "torchvision", "torch", "PyTorch")
"""The picture has one peer a row: the first of these that the row has, else any."""
LEFT, WIDE, RIGHT, LINE, GAP = 500, 300, 280, 22, 5
MOST = 4.0
"""The picture's strips reach from 1 / MOST to MOST."""
COLOUR = {"plain": COLOURS[1], "fast": COLOURS[0]}
LEGEND = (
    f'<text x="8" y="20">above the line faster than the peer: <tspan fill="{COLOUR["plain"]}">NumPy alone</tspan>, '
    f'<tspan fill="{COLOUR["fast"]}">with compiled loops</tspan></text>'
)


class Now(NamedTuple):
    """When and where a table is measured."""

    date: str
    commit: str
    machine: str

    @staticmethod
    def of(machine: str) -> Now:
        """Today, and the commit of the repository, with a + if the working tree differs from it; "" without Git."""
        command = ["git", "-C", str(HISTORY.parent), "describe", "--always", "--match=", "--dirty=+"]
        try:
            commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        except OSError:
            commit = ""
        return Now(datetime.date.today().isoformat(), commit, machine)


class Entry(NamedTuple):
    """A row of the history. plain: the ratio with NumPy alone; fast: with compiled loops, None if they were not timed."""

    date: str
    commit: str
    machine: str
    threads: str
    table: str
    row: str
    peer: str
    plain: float
    fast: float | None

    @property
    def what(self) -> tuple[str, ...]:
        """All that two entries must share to be comparable."""
        return self.machine, self.table, self.row, self.threads, self.peer

    def __str__(self) -> str:
        threads = f", {self.threads} thread{'s' * (self.threads != '1')}" if self.threads else ""
        return f"{self.table}: {self.row}{threads}, beside {self.peer}"


def read(path: Path = HISTORY) -> list[Entry]:
    """Return the entries, oldest first; none without the file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return [Entry(*row[:7], float(row[7]), float(row[8]) if row[8] else None) for row in rows]


def append(path: Path, entries: Iterable[Entry]) -> None:
    """Add entries to the file; it gets a line of names first if it is new."""
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(Entry._fields)
        for entry in entries:
            fast = "" if entry.fast is None else f"{entry.fast:.3g}"
            writer.writerow([*entry[:7], f"{entry.plain:.3g}", fast])


def series(entries: Iterable[Entry]) -> dict[tuple[str, ...], list[Entry]]:
    """Return the entries that are comparable, in their order."""
    found: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.what, []).append(entry)
    return found


def slowdowns(entries: Iterable[Entry]) -> list[str]:
    """Return a line for each ratio that is now more than a tenth below the best one of the same row and machine."""
    lines = []
    for comparable in series(entries).values():
        newest = comparable[-1]
        for way, words in WAYS.items():
            best, now = best_of(comparable, way), getattr(newest, way)
            if now is not None and now < SLOWER * getattr(best, way):
                lines.append(f"{newest}{words}: {now:.2f} at {newest.commit}, {getattr(best, way):.2f} at {best.commit}")
    return lines


def best_of(comparable: Sequence[Entry], way: str) -> Entry:
    """Return the entry with the best ratio of this way."""
    return max(comparable, key=lambda entry: getattr(entry, way) or 0.0)


def picture_of(entries: Sequence[Entry]) -> str:
    """SVG: a strip for each row of the machine with the most commits, of two alike the newer: its ratios over the commits;
    above the grey line minicaffe is faster. A triangle stands between a ratio and the best one that it lost."""
    known: dict[str, set[str]] = {}
    for entry in reversed(entries):
        known.setdefault(entry.machine, set()).add(entry.commit)
    longest = max(known, key=lambda machine: len(known[machine]))
    here = [entry for entry in entries if entry.machine == longest]
    commits = list(dict.fromkeys(entry.commit for entry in here))
    step = WIDE / max(len(commits) - 1, 1)
    parts, y = [LEGEND], 30.0
    for line in _one_peer_a_row(here):
        middle, bottom = y + LINE / 2, y + LINE
        parts.append(f'<rect x="{LEFT}" y="{y:.0f}" width="{WIDE}" height="{LINE}" fill="#f4f4f4"/>')
        parts.append(f'<path d="M{LEFT} {middle:.1f}h{WIDE}" stroke="#999999" stroke-width="0.6"/>')
        for way, colour in COLOUR.items():
            made = [(commits.index(e.commit) * step, ratio) for e in line if (ratio := getattr(e, way)) is not None]
            places = [(LEFT + x, bottom - LINE * _height(ratio)) for x, ratio in made]
            points = " ".join(f"{x:.1f},{height:.1f}" for x, height in places)
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
            parts += [f'<circle cx="{x:.1f}" cy="{height:.1f}" r="2" fill="{colour}"/>' for x, height in places]
        parts.append(f'<text x="{LEFT - 8}" y="{middle + 4:.0f}" text-anchor="end">{escape(_title(line[-1]))}</text>')
        parts.append(f'<text x="{LEFT + WIDE + 8}" y="{middle + 4:.0f}">{escape(_figures(line))}</text>')
        y += LINE + GAP
    ends = [(LEFT, "start", here[0]), (LEFT + WIDE, "end", here[-1])][: len(commits)]
    parts += [f'<text x="{x}" y="20" text-anchor="{anchor}">{e.date} {escape(e.commit)}</text>' for x, anchor, e in ends]
    width, height = LEFT + WIDE + RIGHT, y + 4
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" font-family="sans-serif"'
    frame = f'<rect width="{width}" height="{height:.0f}" fill="#ffffff"/>'
    return "\n".join([f'{head} font-size="{FONT}">', frame, *parts, "</svg>\n"])


def _one_peer_a_row(entries: Sequence[Entry]) -> list[list[Entry]]:
    rows: dict[tuple[str, ...], dict[str, list[Entry]]] = {}
    for line in series(entries).values():
        rows.setdefault((line[0].table, line[0].row, line[0].threads), {})[line[0].peer] = line
    chosen = []
    for _, peers in sorted(rows.items()):
        chosen.append(next((peers[name] for name in YARDSTICKS if name in peers), next(iter(peers.values()))))
    return chosen


def _height(ratio: float) -> float:
    """0 to 1, logarithmic: 1 / MOST or less to MOST or more."""
    return (math.log(min(max(ratio, 1 / MOST), MOST), MOST) + 1) / 2


def _title(entry: Entry) -> str:
    return f"{entry.table}: {entry.row}" + (f", {entry.threads} threads" if entry.threads not in ("", "1") else "")


def _figures(line: Sequence[Entry]) -> str:
    """Return the newest ratios, with the best ones where these are much better."""
    newest, words = line[-1], []
    for way, name in (("plain", ""), ("fast", "fast ")):
        if (now := getattr(newest, way)) is not None:
            best = getattr(best_of(line, way), way)
            words.append(f"{name}{now:.2f}" + (f" \N{BLACK DOWN-POINTING TRIANGLE} {best:.2f}" if now < SLOWER * best else ""))
    return f"{', '.join(words)} ({newest.peer})"
