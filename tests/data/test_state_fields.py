"""What layers refuse of a state to resume from, by the field's name."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from layer_case import LayerCase

from minicaffe.data.state_fields import Fields, State, is_resumable
from minicaffe.errors import Error
from minicaffe.formats.prototxt import parse_net
from minicaffe.net import Net

SIZES = "batch_size: 2 channels: 1 height: 1 width: 1"
MEMORY = f'layer {{ name: "m" type: "MemoryData" top: "x" top: "y" memory_data_param {{ {SIZES} }} }}'
ROI = """layer { name: "d" type: "RoIData" top: "data" top: "im_info" top: "gt_boxes"
                 python_param { param_str: "num_classes: 3" } }"""
LSTM = 'type: "LSTM" recurrent_param { num_output: 4 weight_filler { type: "uniform" } }'


@pytest.mark.parametrize("position", [10**6, -3, -2, 1, 6, "2", 2.0, None])
def test_memory_data(position: Any) -> None:
    net = Net(parse_net(MEMORY))
    net.set_input_arrays(np.zeros((6, 1, 1, 1)), np.arange(6.0))
    with pytest.raises(ValueError, match=r'^"position" must be a '):
        net.layers[0].restore_training_state({"position": position})
    assert net.layers[0].training_state() == {"position": 0}
    net.layers[0].restore_training_state({"position": 4})
    assert net.forward()["y"].ravel().tolist() == [4, 5]


@pytest.mark.parametrize("order", [[0, 10**6], [0, -3], ["0"], [0.0], [None], 0, "0"])
def test_roi_data(order: Any) -> None:
    layer = Net(parse_net(ROI)).layers[0]
    image, boxes = np.zeros((40, 60, 3), np.uint8), np.array([[1, 2, 30, 30.0]])
    layer.set_roidb([{"image": image, "boxes": boxes, "gt_classes": np.array([1])}] * 3)
    with pytest.raises(ValueError, match=r'^"order'):
        layer.restore_training_state({"images": 3, "order": order})
    layer.restore_training_state({"images": 3, "order": [2, 1]})
    assert layer.training_state() == {"images": 3, "order": [2, 1]}


@pytest.mark.parametrize(
    "h",
    [
        7,
        [],
        [[1, 2, 4]],
        [[1, 2, 4], ["0"] * 8],
        [[1, 2, 4], [0.0] * 7],
        [[10**6, 10**6, 4], [0.0] * 8],
        [[1, -2, 4], [0.0] * 8],
    ],
)
def test_lstm(h: Any) -> None:
    case = LayerCase(LSTM, np.ones((3, 2, 5)), np.ones((3, 2)))
    case.forward()
    state = json.loads(json.dumps(case.layer.training_state()))
    with pytest.raises(ValueError, match=r'^"h'):
        case.layer.restore_training_state(state | {"h": h})
    case.layer.restore_training_state(state)
    assert json.loads(json.dumps(case.layer.training_state())) == state


def test_a_path_names_the_place() -> None:
    fields = Fields({"a": {"b": [1, {}, "x"]}})
    assert fields.inner("a").items("b") == [1, {}, "x"]
    for read, message in (
        (lambda: fields.inner("a").wholes("b", 0, 9), r'"a\.b\[1\]" must be a whole number from 0 to 9, got {}'),
        (lambda: fields.inner("a").numbers("b"), r'"a\.b\[1\]" must be a number, got {}'),
        (lambda: fields.inner("c"), '"c" is missing'),
        (lambda: fields.text("a"), '"a" must be a text, got'),
        (lambda: fields.inner("a").inner("b"), r'"a\.b" must be an object with members, got \[1'),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            read()


def test_a_layer_with_one_of_the_methods_alone_is_an_error() -> None:
    """Its state would be lost without a word."""

    class Saves:
        def training_state(self) -> State:
            return {}

    class Resumes(Saves):
        def restore_training_state(self, state: State) -> None:
            pass

    assert is_resumable(Resumes()) and not is_resumable(object())
    with pytest.raises(Error, match="Saves has training_state alone"):
        is_resumable(Saves())
