"""The processes below one, and their memory, from Linux's /proc."""

from __future__ import annotations

import re
from pathlib import Path

PROC = Path("/proc")


def below(root: int) -> dict[int, str]:
    """Return the ids and command lines of a process and its descendants."""
    parents: dict[int, int] = {}
    for path in PROC.iterdir():
        if path.name.isdecimal():
            try:
                parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it ended
                continue
    found = {root}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {process: _text(process, "cmdline").replace("\0", " ") for process in found}


def megabytes(process: int) -> float:
    """Return the process's memory, with shared pages divided among their users (Pss)."""
    found = re.search(r"^Pss:\s+(\d+) kB", _text(process, "smaps_rollup"), re.MULTILINE)
    return float(found[1]) / 1e3 if found else 0.0


def _text(process: int, name: str) -> str:
    try:
        return (PROC / str(process) / name).read_text()
    except OSError:
        return ""
