"""For pytest under coverage: each line is noted with the test that reached it; MINICAFFE_TEST_SECONDS takes their seconds."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

SECONDS: dict[str, float] = {}
FAILED: set[str] = set()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    measured = coverage.Coverage.current()
    if measured:
        measured.switch_context(item.nodeid)
    start = sum(os.times()[:4])
    try:
        return (yield)
    finally:
        SECONDS[item.nodeid] = sum(os.times()[:4]) - start
        if measured:
            measured.switch_context("")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:  # a test that fails without a mutant finds none
        FAILED.add(item.nodeid)
    return report


def pytest_sessionfinish() -> None:
    passed = {test: seconds for test, seconds in SECONDS.items() if test not in FAILED}
    Path(os.environ["MINICAFFE_TEST_SECONDS"]).write_text(json.dumps(passed), encoding="utf-8")
