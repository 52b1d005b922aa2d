"""Hypothesis without deadlines (machines are slow at times); at the end, how many tests compared with the original Caffe."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    outcomes = {"passed": "agree", "failed": "differ", "skipped": "skipped"}
    counts: Counter[str] = Counter()
    for outcome, word in outcomes.items():
        for report in terminalreporter.stats.get(outcome, []):
            counts[word] += "::test_golden" in report.nodeid
    said = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    if said:
        terminalreporter.write_line(f"golden tests, against what the original Caffe computed: {said}")
