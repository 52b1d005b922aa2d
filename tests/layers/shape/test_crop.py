"""Crop."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase
from neuron_checks import normal

from minicaffe import Net
from minicaffe.errors import LayerError, PrototxtWarning
from minicaffe.formats.prototxt import parse_net

pytestmark = pytest.mark.usefixtures("device")


def text(inside: str = "") -> str:
    return f'type: "Crop" crop_param {{ {inside} }}'


def test_by_hand() -> None:
    case = LayerCase(text("axis: 1 offset: 1"), [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]], np.zeros((9, 2)))
    np.testing.assert_array_equal(case.forward()[0], [[2, 3], [6, 7]])
    dx, dreference = case.backward(np.array([[1.0, 2.0], [3.0, 4.0]]))
    np.testing.assert_array_equal(dx, [[0, 1, 2, 0], [0, 3, 4, 0]])
    assert (dreference == 0).all()


@pytest.mark.parametrize("case", cases("Crop"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


@pytest.mark.parametrize("inside", ["", "axis: 1 offset: 1 offset: 2 offset: 0", "axis: -1 offset: 3"])
def test_gradient(inside: str) -> None:
    LayerCase(text(inside), normal(2, 4, 6, 7), normal(2, 3, 4, 4)).check_gradient()


@settings(deadline=None)
@given(st.integers(0, 2), st.integers(0, 3))
def test_agrees_with_slicing(row: int, column: int) -> None:
    x = normal(2, 3, 6, 7)
    case = LayerCase(text(f"offset: {row} offset: {column}"), x, np.zeros((1, 1, 4, 3)))
    np.testing.assert_array_equal(case.forward()[0], x[:, :, row : row + 4, column : column + 3])
    np.testing.assert_array_equal(case.bottom[0].data, x)


def test_second_reshape_and_no_rows() -> None:
    case = LayerCase(text(), normal(2, 3, 6, 7), normal(2, 3, 4, 5))
    case.bottom[0].reshape(0, 5, 9, 8)
    case.bottom[1].reshape(0, 5, 8, 7)
    assert case.forward()[0].shape == (0, 5, 8, 7)
    assert case.backward()[0].shape == (0, 5, 9, 8)


@pytest.mark.parametrize(
    ("inside", "reference", "message"),
    [
        ("", (2, 3, 4), r"bottom 0 has shape \(2, 3, 6, 7\), bottom 1 \(2, 3, 4\): the numbers of axes differ"),
        ("offset: 3", (2, 3, 4, 4), r"offset 3 and length 4 lead past axis 2 of shape \(2, 3, 6, 7\), length 6"),
        ("axis: 1 offset: 1 offset: 2", (2, 2, 4, 4), "2 offset given for 3 cut axes: give none, one, or one for each"),
        ("axis: 4", (2, 3, 4, 5), r"axis 4 is out of range for shape \(2, 3, 6, 7\)"),
    ],
)
def test_errors(inside: str, reference: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match='Crop layer "layer": ' + message):
        LayerCase(text(inside), normal(2, 3, 6, 7), np.zeros(reference))


# Offsets of layers without crop_param.

INPUT = 'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 1 dim: 9 dim: 11 } } }\n'
DOWN = """
layer { name: "conv" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 1 kernel_size: 3 pad: 6 } }
layer { name: "relu" type: "ReLU" bottom: "c" top: "c" }
layer { name: "pool" type: "Pooling" bottom: "c" top: "p" pooling_param { kernel_size: 2 stride: 2 } }
"""
UP = """
layer { name: "up" type: "Deconvolution" bottom: "p" top: "u" convolution_param { num_output: 1 kernel_size: 4 stride: 2 } }
"""


def cropped(text: str, reference: str = "x", inside: str = "", x: str = "u", fork: str = "") -> Net:
    crop = f'layer {{ name: "crop" type: "Crop" bottom: "{x}" bottom: "{reference}" top: "y" {inside} }}'
    return Net(parse_net(INPUT + text + crop), fork=fork)


def test_automatic_offsets_by_hand() -> None:
    """conv moves a place by 5 pixels, pool by -0.5 and a half, up by twice that and 1.5: 6 in all, in both directions."""
    net = cropped(DOWN + UP)
    crop = net.layer_dict["crop"].param.crop_param
    assert (crop.axis, list(crop.offset)) == (2, [6, 6])
    net.blobs["x"].data[...] = 1
    net.forward()
    np.testing.assert_array_equal(net.blobs["y"].data, net.blobs["u"].data[:, :, 6:15, 6:17])


@pytest.mark.parametrize("k", [2, 3, 4, 5])
@pytest.mark.parametrize("pad", [0, 1, 2])
def test_automatic_offsets_meet_the_kernels_centre(k: int, pad: int) -> None:
    """A 1 at one pixel, through a convolution that is 1 at its centre, comes back to that pixel."""
    text = f"""
layer {{ name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param {{ num_output: 1 kernel_size: {2 * k - 1}
  pad: {pad + 2 * k} bias_term: false }} }}
"""
    net = cropped(text, x="c")
    net.params["c"][0].data[0, 0, k - 1, k - 1] = 1
    net.blobs["x"].data[0, 0, 4, 5] = 1
    net.forward()
    np.testing.assert_array_equal(net.blobs["y"].data, net.blobs["x"].data)


def test_a_given_crop_param_and_unconnected_bottoms_keep_bvlcs_offsets() -> None:
    assert list(cropped(DOWN + UP, inside="crop_param { }").layer_dict["crop"].param.crop_param.offset) == []
    other = 'layer { name: "other" type: "Input" top: "o" input_param { shape { dim: 1 dim: 1 dim: 5 dim: 4 } } }\n'
    net = cropped(DOWN + UP + other, "o")
    net.forward()
    np.testing.assert_array_equal(net.blobs["y"].data, net.blobs["u"].data[:, :, :5, :4])


@pytest.mark.parametrize(
    ("text", "x", "message"),
    [
        (
            DOWN.replace("stride: 2", "stride: 1"),
            "p",
            r"the offset \[4.5, 4.5\] is not a whole number of pixels: longjon's Caffe",
        ),
        (DOWN.replace("kernel_size: 3", "kernel_size: 4"), "c", r"the offset \[4.5, 4.5\] is not a whole number of pixels"),
        (
            UP.replace('"p"', '"x"'),
            "u",
            r"cannot crop: the scales differ by \[0.5, 0.5\]: .* so all of the net's Crops are BVLC's",
        ),
    ],
)
def test_what_longjons_would_refuse_is_bvlcs(text: str, x: str, message: str) -> None:
    with pytest.warns(PrototxtWarning, match=message):
        net = cropped(text, x=x)
    assert list(net.layer_dict["crop"].param.crop_param.offset) == []
    assert str(net.forks["crop"]) == 'Crop of BVLC Caffe: longjon\'s Caffe refuses layer "crop"'
    net.forward()
    np.testing.assert_array_equal(net.blobs["y"].data, net.blobs[x].data[:, :, :9, :11])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'layer { name: "tile" type: "Tile" bottom: "x" top: "u" tile_param { axis: 2 tiles: 2 } }',
            'Tile layer "tile" does not map coordinates',
        ),
        (
            'layer { name: "all" type: "Pooling" bottom: "x" top: "u" pooling_param { global_pooling: true } }',
            'Pooling layer "all" does not map coordinates',
        ),
        (
            'layer { name: "join" type: "Concat" bottom: "x" bottom: "x" top: "u" concat_param { axis: 2 } }',
            'Concat layer "join" does not map coordinates',
        ),
    ],
)
def test_a_layer_without_coordinates_between_them(text: str, message: str) -> None:
    ends = ("u", "x") if "global" in text else ("x", "u")  # what is cut must be the larger one
    with pytest.raises(LayerError, match=f"{message}; give one, .* or --fork bvlc"):
        cropped(text, ends[0], x=ends[1], fork="longjon")
    with pytest.warns(PrototxtWarning, match=f"{message}: longjon's Caffe refuses that"):
        net = cropped(text, ends[0], x=ends[1])
    assert "of BVLC Caffe" in str(net.forks["crop"])


TWO = DOWN + UP + 'layer { name: "first" type: "Crop" bottom: "u" bottom: "x" top: "f" }\n'
"""A Crop whose whole offset aligns it, before the one that `cropped` adds."""


def test_a_net_is_one_fork() -> None:
    """By itself the first Crop is longjon's, with offset 6; the second's would be 4.5."""
    net = cropped(TWO)
    assert list(net.layer_dict["first"].param.crop_param.offset) == [6, 6]
    assert {str(choice) for choice in net.forks.values()} == {
        "Crop of longjon's Caffe: whole offsets align the bottoms of every Crop"
    }
    halves = DOWN.split("\n")[1].replace('"c', '"h').replace("kernel_size: 3", "kernel_size: 4")
    with pytest.warns(PrototxtWarning, match=r"4.5.*so all of the net's Crops are BVLC's, with offset 0"):
        net = cropped(TWO + halves, x="h")
    assert {str(choice) for choice in net.forks.values()} == {'Crop of BVLC Caffe: longjon\'s Caffe refuses layer "crop"'}
    net.blobs["x"].data[...] = 1
    net.forward()
    np.testing.assert_array_equal(net.blobs["f"].data, net.blobs["u"].data[:, :, :9, :11])
    again = Net(net.param)
    again.share_with(net)
    again.forward(x=net.blobs["x"].data)
    np.testing.assert_array_equal(again.blobs["f"].data, net.blobs["f"].data)


@pytest.mark.parametrize(
    ("inside", "fork", "offset", "told"),
    [
        ("", "bvlc", [], "BVLC Caffe: fork bvlc"),
        ("", "hed", [6, 6], "longjon's Caffe: fork hed"),
        ("crop_param {}", "", [], 'BVLC Caffe: layer "crop" has crop_param'),
        ("crop_param {}", "longjon", [6, 6], "longjon's Caffe: fork longjon"),
    ],
)
def test_the_fork_and_bvlcs_field_decide(inside: str, fork: str, offset: list[int], told: str) -> None:
    net = cropped(TWO, inside=inside, fork=fork)
    assert list(net.layer_dict["first"].param.crop_param.offset) == offset
    assert str(net.forks["first"]) == f"Crop of {told}"


def test_an_offset_that_leads_past_is_bvlcs() -> None:
    """u has 12 columns: the offset that aligns it with the 11 of x is 2."""
    text = """
layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 1 kernel_size: 4 stride: 4 } }
layer { name: "up" type: "Deconvolution" bottom: "c" top: "u" convolution_param { num_output: 1 kernel_size: 8 stride: 4 } }
"""
    with pytest.warns(PrototxtWarning, match="offset 2 and length 11 lead past length 12"):
        net = cropped(text)
    net.forward()
    np.testing.assert_array_equal(net.blobs["y"].data, net.blobs["u"].data[:, :, :9, :11])


AUTO = """
layer { name: "c" type: "Convolution" bottom: "x" top: "c"
  convolution_param { num_output: 2 kernel_size: 3 stride: 2 weight_filler { type: "gaussian" } } }
layer { name: "up" type: "Deconvolution" bottom: "c" top: "u"
  convolution_param { num_output: 4 kernel_size: 5 stride: 2 weight_filler { type: "gaussian" } } }
layer { name: "crop" type: "AutoCrop" bottom: "u" bottom: "%s" top: "y" %s }
"""


def auto_cropped(reference: str = "c", inside: str = "") -> Net:
    return Net(parse_net('input: "x" input_dim: 2 input_dim: 3 input_dim: 9 input_dim: 11' + AUTO % (reference, inside)))


def test_auto_crop_aligns_its_bottoms() -> None:
    """From x to c: a = 1/2, b = -1/2; from c to u: a = 2, b = 2. So u is x moved by 1, and is cut at offset 1."""
    net = auto_cropped("x", "")
    net.forward(x=normal(2, 3, 9, 11))
    assert list(net.layer_dict["crop"].param.crop_param.offset) == [1, 1]
    np.testing.assert_array_equal(net.blobs["y"].data, net.blobs["u"].data[:, :, 1:10, 1:12])
    again = Net(net.param)
    assert list(again.layer_dict["crop"].param.crop_param.offset) == [1, 1]


def test_auto_crop_by_hand() -> None:
    case = LayerCase('type: "AutoCrop" crop_param { offset: 1 offset: 0 }', [[[[1.0, 2], [3, 4]]]], np.zeros((5, 3, 1, 2)))
    assert case.forward()[0].tolist() == [[[[3, 4]]]]
    assert case.backward(np.array([[[[5.0, 6]]]]))[0].tolist() == [[[[0, 0], [5, 6]]]]


def test_auto_crop_gradient() -> None:
    LayerCase('type: "AutoCrop" crop_param { offset: 2 }', normal(2, 3, 5, 7), normal(2, 1, 3, 4)).check_gradient()


def test_auto_crop_of_bottoms_that_do_not_align() -> None:
    with pytest.raises(LayerError, match=r'AutoCrop layer "crop": cannot crop: the scales differ by .*; give offsets, as in'):
        auto_cropped("c")
    apart = 'input: "x" input_dim: 1 input_dim: 1 input_dim: 3 input_dim: 4 input: "u" input_dim: 1 input_dim: 1'
    apart += ' input_dim: 5 input_dim: 5 layer { name: "crop" type: "AutoCrop" bottom: "u" bottom: "x" top: "y" }'
    with pytest.raises(LayerError, match="its bottoms are not made from one blob; give offsets"):
        Net(parse_net(apart))
