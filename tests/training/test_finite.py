"""check_finite: the first layer, blob and iteration that is not finite, whichever pass it is in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import minicaffe
from minicaffe import TRAIN, LayerError, Net, get_solver
from minicaffe.cli import main
from minicaffe.formats.prototxt import parse_net
from minicaffe.training.finite import check_finite, is_finite

TEXT = """
layer { name: "x" type: "Input" top: "x" top: "t" input_param { shape { dim: 2 dim: 3 } shape { dim: 2 dim: 4 } } }
layer { name: "f" type: "InnerProduct" bottom: "x" top: "f" inner_product_param { num_output: 4 weight_filler { value: 0.5 } } }
layer { name: "p" type: "Power" bottom: "f" top: "p" power_param { power: 0.5 } }
layer { name: "loss" type: "EuclideanLoss" bottom: "p" bottom: "t" }
"""


def net(x: float = 1.0) -> Net:
    made = Net(parse_net(TEXT, "net.prototxt"), TRAIN)
    made.blobs["x"].data[...] = x
    return made


def test_a_finite_net_runs_and_loses_its_hooks() -> None:
    made = net()
    with check_finite(made):
        made.forward_backward()
    assert not made.forward_is_watched


def test_forward_names_the_layer_that_made_it() -> None:
    made = net(-1.0)  # sqrt(-1.5)
    with check_finite(made, lambda: "iteration 7"), pytest.raises(LayerError) as raised:
        made.forward_backward()
    assert str(raised.value) == (
        'Power layer "p": iteration 7: its top "p": 8 of its 8 numbers are not finite, the first nan at (0, 0); made'
        " by its forward from finite bottoms (net.prototxt:4)"
    )


def test_data_that_comes_in_names_the_input() -> None:
    made = net()
    made.blobs["x"].data[1, 2] = np.inf
    with check_finite(made), pytest.raises(LayerError) as raised:
        made.forward()
    assert str(raised.value) == (
        'Input layer "x": its top "x": 1 of its 6 numbers is not finite, the first inf at (1, 2); as given (net.prototxt:2)'
    )


def test_backward_names_the_layer_that_made_it() -> None:
    made = net(0.0)  # the root's slope at 0
    made.blobs["t"].data[...] = 1
    told = r'Power layer "p": the diff of its bottom "f": 8 of .* the first -?(inf|nan) at'
    with check_finite(made), pytest.raises(LayerError, match=told):
        made.forward_backward()


def test_a_weight() -> None:
    made = net()
    made.params["f"][1].data[3] = np.nan
    told = r'"f": its weight 1: 1 of its 4 numbers is not finite, the first nan at \(3,\); since the last update'
    with check_finite(made), pytest.raises(LayerError, match=told):
        made.forward()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_is_finite(dtype: type[np.floating]) -> None:
    largest = np.full((3, 5), np.finfo(dtype).max, dtype)
    assert is_finite(largest)
    for bad in (np.nan, np.inf, -np.inf):
        largest[1, 2] = bad
        assert not is_finite(largest)
    assert not is_finite(np.array([np.inf, -np.inf], dtype))
    assert is_finite(np.zeros((0, 3), dtype))


SOLVER = 'net: "net.prototxt" base_lr: 1e30 lr_policy: "fixed" max_iter: 9 snapshot_prefix: "snap"'
DATA = """
layer { name: "x" type: "DummyData" top: "x" top: "t" dummy_data_param {
    shape { dim: 2 dim: 3 } shape { dim: 2 dim: 4 } data_filler { type: "gaussian" } data_filler { type: "gaussian" } } }
layer { name: "f" type: "InnerProduct" bottom: "x" top: "f" inner_product_param { num_output: 4
    weight_filler { type: "gaussian" } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "f" bottom: "t" }
"""


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(DATA)
    Path("solver.prototxt").write_text(SOLVER)
    result = CliRunner().invoke(main, ["train", "solver.prototxt", "--check-finite", "--seed", "3"])
    assert result.exit_code == 1
    assert 'EuclideanLoss layer "loss": iteration 1: its top' in result.output
    result = CliRunner().invoke(main, ["train", "solver.prototxt", "--seed", "3"])
    assert "iteration 1: the loss is inf ((automatic) = inf); the weights were not updated" in result.output
    solver = get_solver("solver.prototxt")
    with minicaffe.check_finite(solver.net), pytest.raises(LayerError, match='"loss"'):
        solver.solve()
