"""How much each reader was fuzzed in all: seconds of processor time, inputs and findings, added up in a JSON file.

    {"npy": {"seconds": 90, "inputs": 1370113, "found": 0}, ...}

Table of it, as in docs/reliability.md: python tests/fuzz/tally.py FILE
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

Tally = dict[str, dict[str, int]]


def read(path: Path) -> Tally:
    """The tally in a file; empty where there is none yet."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def add(path: Path, name: str, seconds: int, inputs: int, found: int) -> None:
    """Add one run of a reader to the file."""
    tally = read(path)
    sums = tally.setdefault(name, {"seconds": 0, "inputs": 0, "found": 0})
    for key, number in (("seconds", seconds), ("inputs", inputs), ("found", found)):
        sums[key] += number
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(tally, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(new, path)


def short_of(tally: Tally, names: list[str], seconds: int) -> list[str]:
    """The readers that were fuzzed for less than so many seconds, those first that were least."""
    had = {name: tally.get(name, {}).get("seconds", 0) for name in names}
    return sorted((name for name in names if had[name] < seconds), key=had.__getitem__)


def table(tally: Tally) -> str:
    """Markdown: a row for each reader, and their sums."""
    rows = [f"| {name} | {sums['seconds']:,} | {sums['inputs']:,} | {sums['found']} |" for name, sums in tally.items()]
    total = {key: sum(sums[key] for sums in tally.values()) for key in ("seconds", "inputs", "found")}
    rows.append(f"| all | {total['seconds']:,} | {total['inputs']:,} | {total['found']} |")
    return "\n".join(["| reader | seconds | inputs | found |", "|---|---|---|---|", *rows])


if __name__ == "__main__":
    print(table(read(Path(sys.argv[1]))))
