"""The ratios of all runs that were written to history.csv: draws docs/images/benchmark_history.svg, and prints each row whose
newest ratio is more than a tenth below its best one on the same machine."""

from __future__ import annotations

from benchmarks._history import picture_of, read, slowdowns
from benchmarks._report import DOCS, HISTORY_PICTURE


def main() -> None:
    entries = read()
    if not entries:
        raise SystemExit("history.csv has no entries yet: write a table with --write")
    (DOCS / "images" / HISTORY_PICTURE).write_text(picture_of(entries), encoding="utf-8")
    print("\n".join(slowdowns(entries)) or "no row is more than a tenth below its best ratio")
