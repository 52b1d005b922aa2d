"""FLOWriter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.formats.flo import read_flo

TEXT = 'type: "FLOWriter" writer_param {{ {} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_each_forward_writes_a_file() -> None:
    flow = normal(1, 2, 3, 4)
    case = LayerCase(TEXT.format('folder: "out/a" prefix: "p-" suffix: "-s"'), flow, tops=0)
    case.forward()
    case.bottom[0].reshape(2, 2, 5, 3)
    case.bottom[0].data[...] = more = normal(2, 2, 5, 3)
    case.forward()
    names = ["p-0000000-s.flo", "p-0000001(000)-s.flo", "p-0000001(001)-s.flo"]
    assert sorted(path.name for path in Path("out/a").iterdir()) == names
    for name, expected in zip(names, (flow[0], *more), strict=True):
        assert (read_flo(f"out/a/{name}") == expected).all()
    assert case.layer.training_state() == {"forwards": 2}
    case.layer.restore_training_state({"forwards": 5})
    case.forward()
    assert Path("out/a/p-0000005(000)-s.flo").exists()


@given(st.integers(1, 4), st.integers(1, 5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_of_its_own_is_written_anew(height: int, width: int) -> None:
    flow = normal(1, 2, height, width)
    LayerCase(TEXT.format('file: "a.flo"'), flow, tops=0).forward()
    assert (read_flo("a.flo") == flow[0]).all()


def test_errors() -> None:
    with pytest.raises(LayerError, match="needs a file or a folder"):
        LayerCase(TEXT.format(""), normal(1, 2, 3, 4), tops=0)
    with pytest.raises(LayerError, match=r"the flow must be \(N, 2, H, W\), got shape \(1, 3, 3, 4\)"):
        LayerCase(TEXT.format('folder: "a"'), normal(1, 3, 3, 4), tops=0)
    with pytest.raises(LayerError, match="is not in the working directory"):
        LayerCase(TEXT.format('folder: "/etc"'), normal(1, 2, 3, 4), tops=0)
    Path("notes.txt").write_text("mine")
    with pytest.raises(LayerError, match=r"cannot write .*notes.txt: it is there and no \.flo file: not overwritten"):
        LayerCase(TEXT.format('file: "notes.txt"'), normal(1, 2, 3, 4), tops=0).forward()
    assert Path("notes.txt").read_text() == "mine"
    Path("taken").write_text("")
    with pytest.raises(LayerError, match="cannot write"):
        LayerCase(TEXT.format('folder: "taken"'), normal(1, 2, 3, 4), tops=0).forward()
