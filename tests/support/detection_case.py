"""Helpers for the tests of detection layers: temporary settings, and the golden whole nets' blobs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from golden import GOLDEN, SHARED

from minicaffe.data.settings import DetectionSettings, current, read_settings, use

CFGS = SHARED / "models" / "cfgs"
WHOLE = GOLDEN / "whole_nets"


@contextmanager
def settings(**changes: Any) -> Iterator[DetectionSettings]:
    """Yield the defaults with changes, as current settings; train_x=... is TRAIN.X, test_x=... TEST.X, the rest top level."""
    base = DetectionSettings()
    train = {key[6:]: value for key, value in changes.items() if key.startswith("train_")}
    test = {key[5:]: value for key, value in changes.items() if key.startswith("test_")}
    rest = {key: value for key, value in changes.items() if not key.startswith(("train_", "test_"))}
    made = dataclasses.replace(
        base, train=dataclasses.replace(base.train, **train), test=dataclasses.replace(base.test, **test), **rest
    )
    with using(made):
        yield made


@contextmanager
def using(made: DetectionSettings) -> Iterator[None]:
    before = current()
    use(made)
    try:
        yield
    finally:
        use(before)


def cfg(name: str) -> DetectionSettings:
    """Return one of the originals' yml files: "py-R-FCN/rfcn_end2end_ohem"."""
    return read_settings(CFGS / f"{name}.yml")


def whole_net(case: str) -> tuple[Any, dict[str, np.ndarray]]:
    """Return the stored arrays of a whole net, and its inputs whose values the json holds."""
    inputs = json.loads((WHOLE / f"{case}.json").read_text())["inputs"]
    return np.load(WHOLE / f"{case}.npz"), {
        k: np.array(v["values"], np.float32) for k, v in inputs.items() if v["kind"] == "values"
    }


def python_layer(kind: str, **values: Any) -> str:
    """Return the text of a layer of a type, with values as its param_str."""
    text = "\\n".join(f"'{key}': {value}" for key, value in values.items())
    return f'type: "{kind}" python_param {{ param_str: "{text}" }}'
