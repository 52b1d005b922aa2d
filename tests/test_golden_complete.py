"""Every layer type that golden data exists for and that is built in has its cases run by its own test file."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden import GOLDEN, needs_golden

from minicaffe.layers import CATALOGUE

TYPES = sorted(p.name for p in GOLDEN.iterdir() if p.name in CATALOGUE) if GOLDEN.is_dir() else []
TESTS = "\n".join(path.read_text(encoding="utf-8") for path in (Path(__file__).parent / "layers").glob("*.py"))


@needs_golden
@pytest.mark.parametrize("layer_type", TYPES)
def test_the_cases_of_a_type_are_run(layer_type: str) -> None:
    assert list((GOLDEN / layer_type).glob("*.npz"))
    assert f'cases("{layer_type}")' in TESTS
