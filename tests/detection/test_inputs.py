"""A net's inputs: images, worked by hand, and generated values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from coloured import CENTRED, COLOURED, MEANS, check_planes

from minicaffe import TEST, Net
from minicaffe.data.settings import DetectionSettings
from minicaffe.detection.inputs import Order, fill_inputs, put_image
from minicaffe.formats.prototxt import parse_net

TEXT = """
input: "words" input_shape { dim: 4 dim: 2 }
input: "begins" input_shape { dim: 4 dim: 2 }
input: "chosen" input_shape { dim: 7 }
input: "target" input_shape { dim: 7 }
layer { name: "e" type: "Embed" bottom: "words" top: "e" embed_param { input_dim: 10 num_output: 3 } }
layer { name: "l" type: "LSTM" bottom: "e" bottom: "begins" top: "h" recurrent_param { num_output: 5 } }
layer { name: "c" type: "BatchReindex" bottom: "h" bottom: "chosen" top: "rows" }
layer { name: "f" type: "InnerProduct" bottom: "rows" top: "f" inner_product_param { num_output: 2 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "f" bottom: "target" top: "loss" }
"""


def test_generated_values_suit_the_layers_that_read_them() -> None:
    net = Net(parse_net(TEXT).param)
    notes = fill_inputs(net, {})
    words, begins, chosen, target = (net.blobs[name].data for name in ("words", "begins", "chosen", "target"))
    for values, below in ((words, 10), (chosen, 4)):
        assert (values == np.floor(values)).all() and values.min() >= 0 and values.max() < below
    assert len(np.unique(words)) > 2
    assert begins.tolist() == [[0, 0], [1, 1], [1, 1], [1, 1]]
    assert not target.any()
    net.forward()
    assert notes[0] == "input words not given: random whole numbers below 10 of shape (4, 2) (seed 0)"


def test_a_made_up_mask_holds_zeros_and_ones() -> None:
    text = """input: "data" input_shape { dim: 1 dim: 2 dim: 8 dim: 9 }
    input: "mask" input_shape { dim: 1 dim: 1 dim: 8 dim: 9 }
    layer { name: "m" type: "Mask" bottom: "data" bottom: "mask" top: "kept" }"""
    net = Net(parse_net(text).param)
    assert "input mask not given: random whole numbers below 2 of shape (1, 1, 8, 9) (seed 0)" in fill_inputs(net, {})
    kept = int(net.blobs["mask"].data.sum())
    assert 0 < kept < 72 and net.forward()["kept"].shape == (kept, 2, 1, 1)


def test_a_pvanet_without_its_settings_is_warned_of() -> None:
    pvanet = net(3, 'input: "im_info" input_shape { dim: 1 dim: 6 }')
    image = np.zeros((30, 50, 3), np.uint8)
    with pytest.warns(UserWarning, match="im_info has 6 numbers, .* --cfg a file with TEST: {SCALE_MULTIPLE_OF: 32}"):
        put_image(pvanet, "data", image, SETTINGS)
    pvanet.blobs["im_info"].reshape(1, 6)
    put_image(pvanet, "data", image, replace(SETTINGS, test=replace(SETTINGS.test, scale_multiple_of=32)))
    assert pvanet.blobs["data"].shape == (1, 3, 576, 992)  # of 600 x 1000
    np.testing.assert_allclose(pvanet.blobs["im_info"].data, [[576, 992, 992 / 50, 576 / 30, 992 / 50, 576 / 30]])


SETTINGS = replace(DetectionSettings(), pixel_means=MEANS)


def net(channels: int, more: str = "") -> Net:
    text = f'input: "data" input_shape {{ dim: 1 dim: {channels} dim: 4 dim: 6 }} {more}'
    return Net(parse_net(text + ' layer { name: "quiet" type: "Silence" bottom: "data" }', "n.prototxt"), TEST)


@pytest.mark.parametrize(
    ("channels", "order", "wanted"),
    [
        (3, Order(), CENTRED),
        (3, Order(rgb=True), CENTRED[::-1]),
        (3, Order(columns_first=True), CENTRED),
        (1, Order(), [35 / 3]),
    ],
    ids=["blue first", "red first", "columns first", "grey"],
)
def test_colours(channels: int, order: Order, wanted: list[float]) -> None:
    made = net(channels)
    assert put_image(made, "data", COLOURED, SETTINGS, order) == {"data"}
    check_planes(made, "data", wanted)


def test_the_axes() -> None:
    """A picture of the input's own size, of which one row and one column are brighter."""
    picture = np.tile(np.array(MEANS, np.uint8), (4, 6, 1))
    picture[1] += 7
    picture[:, 4] += 9
    plain, turned = net(3), net(3)
    put_image(plain, "data", picture, SETTINGS)
    expected = np.zeros((4, 6))
    expected[1] += 7
    expected[:, 4] += 9
    np.testing.assert_array_equal(plain.blobs["data"].data[0, 2], expected)
    turned.blobs["data"].reshape(1, 3, 6, 4)
    put_image(turned, "data", picture, SETTINGS, Order(columns_first=True))
    np.testing.assert_array_equal(turned.blobs["data"].data[0, 2], expected.T)


def test_a_net_with_im_info_has_the_image_at_the_settings_scale() -> None:
    more = 'input: "im_info" input_shape { dim: 1 dim: 3 } layer { name: "q" type: "Silence" bottom: "im_info" }'
    made = net(3, more)
    assert put_image(made, "data", COLOURED, SETTINGS) == {"data", "im_info"}
    np.testing.assert_array_equal(made.blobs["im_info"].data, [[600, 900, 15]])
    check_planes(made, "data", CENTRED)
