"""Every layer type that golden data exists for and that is built in has its cases run among the tests of layers."""

from __future__ import annotations

import re
from pathlib import Path

from golden import GOLDEN, needs_golden

from minicaffe.layers import CATALOGUE

LAYERS = Path(__file__).parent / "layers"


@needs_golden
def test_the_cases_of_every_type_are_run() -> None:
    """By name, or as a row of test_neurons.py, which runs the cases of all its types."""
    types = {path.name for path in GOLDEN.iterdir() if path.name in CATALOGUE}
    assert len(types) > 60
    assert [kind for kind in sorted(types) if not list((GOLDEN / kind).glob("*.npz"))] == []
    texts = "\n".join(path.read_text(encoding="utf-8") for path in LAYERS.rglob("*.py"))
    run = set(re.findall(r'cases\("(\w+)"\)', texts))
    run |= set(re.findall(r"""\('type: "(\w+)""", (LAYERS / "test_neurons.py").read_text(encoding="utf-8")))
    assert sorted(types - run) == []
