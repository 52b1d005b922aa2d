"""What a test changes in the process is put back after it (support/process_state.py)."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

import numpy as np
import process_state
import pytest

import minicaffe
from minicaffe import Layer, limits, registry
from minicaffe.data import settings


class Mine(Layer):
    """A layer that a test registers."""


def change(folder: Path) -> None:
    minicaffe.register("Mine", Mine)
    minicaffe.register("ReLU", Mine)
    registry.explains(Mine, subclasses=True)(len)
    minicaffe.allow_path(folder)
    minicaffe.allow_module("mine", folder)
    minicaffe.serve_as_caffe()
    minicaffe.set_num_threads(minicaffe.get_num_threads() + 1)
    settings.use(settings.DetectionSettings(rng_seed=9))
    limits.layers = 3
    sys.path.insert(0, str(folder))
    os.chdir(folder)
    os.environ["MINE"] = "1"
    os.environ.pop("PATH")
    np.seterr(divide="raise")
    logging.getLogger("minicaffe").addHandler(logging.NullHandler())
    logging.getLogger().setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def test_all_that_a_test_changes_is_put_back(tmp_path: Path) -> None:
    before = process_state.read()
    change(tmp_path)
    changed = [number for number, value in enumerate(process_state.read()) if value != before[number]]
    assert len(changed) >= 16
    process_state.put_back(before)
    assert process_state.read() == before
    assert os.environ["PATH"] and "MINE" not in os.environ
    assert registry.find("ReLU") is not Mine and registry.explains.get(Mine) is None


def test_entries_that_a_module_of_minicaffe_adds_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module is imported once."""
    relu = registry.types["ReLU"]
    entry = registry.explains.get(relu)
    monkeypatch.delitem(registry.explains._entries, relu)
    before = process_state.read()
    registry.explains._entries[relu] = entry
    process_state.put_back(before)
    assert registry.explains.get(relu) is entry


@pytest.mark.parametrize("time", [1, 2])
def test_each_test_begins_alike(time: int) -> None:
    """One test registers a type and draws numbers. The other finds no such type, and draws the same numbers."""
    assert "Once" not in registry.types
    registry.register("Once", Mine)
    assert minicaffe.rng.generator().integers(100, size=3).tolist() == [85, 63, 51]
