"""Every way a user's files are wrong gives one clear minicaffe.Error, through the public entry points."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from minicaffe import TEST, Error, LayerError, Net, PrototxtError, WeightsError, set_random_seed
from minicaffe.formats.prototxt import parse_net

MAP = 'layer { name: "map" type: "Input" top: "map" input_param { shape { dim: 2 dim: 18 dim: 9 dim: 11 } } }\n'
ROIS = 'layer { name: "rois" type: "Input" top: "rois" input_param { shape { dim: 3 dim: 5 } } }\n'
ROI_LAYERS = {
    "ROIPooling": "roi_pooling_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.0625 }",
    "ROIAlign": "roi_align_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.0625 }",
    "PSROIPooling": "psroi_pooling_param { spatial_scale: 0.0625 output_dim: 2 group_size: 3 }",
    "PSROIAlign": "psroi_align_param { spatial_scale: 0.0625 output_dim: 2 group_size: 3 }",
}


def roi_net(kind: str, param: str = "", rois: str = ROIS) -> Net:
    layer = f'layer {{ name: "pool" type: "{kind}" bottom: "map" bottom: "rois" top: "pool" {param or ROI_LAYERS[kind]} }}\n'
    return Net(parse_net(MAP + rois + layer, "head.prototxt"), TEST)


def good_rois() -> np.ndarray:
    return np.array([[0, 8, 8, 90, 100], [1, 0, 20, 175, 143], [1, 30, 30, 31, 31]], np.float32)


@pytest.mark.parametrize("kind", ROI_LAYERS)
def test_roi_values(kind: str) -> None:
    net = roi_net(kind)
    net.blobs["map"].data[...] = 1
    for (row, column, value), message in {
        (1, 0, 2.0): r"\[2\.0, .*the batch index is out of range: the batch has 2 images",
        (2, 0, -1.0): r"\[-1\.0, .*the batch index is out of range",
        (0, 0, 0.5): r"\[0\.5, .*whole",
        (2, 3, np.nan): "nan",
        (1, 1, np.inf): "inf",
    }.items():
        rois = good_rois()
        rois[row, column] = value
        net.blobs["rois"].data[...] = rois
        with pytest.raises(LayerError, match=re.compile(rf'^{kind} layer "pool": .*{message}', re.I)) as caught:
            net.forward()
        assert f"roi {row}" in str(caught.value) or f"row {row}" in str(caught.value)
        assert "head.prototxt:3" in str(caught.value)
    net.blobs["rois"].data[...] = good_rois()
    assert np.isfinite(net.forward()["pool"]).all()


@pytest.mark.parametrize("kind", ROI_LAYERS)
def test_rois_of_another_width(kind: str) -> None:
    with pytest.raises(LayerError, match=rf'{kind} layer "pool": .*\(3, 4\)'):
        roi_net(kind, rois=ROIS.replace("dim: 5", "dim: 4"))


@pytest.mark.parametrize("kind", ROI_LAYERS)
def test_no_rois(kind: str) -> None:
    net = roi_net(kind)
    net.blobs["rois"].reshape(0, 5)
    assert net.forward()["pool"].shape[0] == 0


@pytest.mark.parametrize("kind", ["PSROIPooling", "PSROIAlign"])
def test_channels_that_do_not_match_name_both_numbers(kind: str) -> None:
    with pytest.raises(LayerError, match=r"18.*45|45.*18"):
        roi_net(kind, ROI_LAYERS[kind].replace("output_dim: 2", "output_dim: 5"))


@pytest.mark.parametrize("kind", ["ROIPooling", "ROIAlign"])
def test_pooled_h_0(kind: str) -> None:
    with pytest.raises(LayerError, match=rf'{kind} layer "pool": pooled_h must be > 0, got 0 \(head.prototxt:3\)'):
        roi_net(kind, ROI_LAYERS[kind].replace("pooled_h: 3", "pooled_h: 0"))


def test_0_rois_all_through_the_head() -> None:
    head = (
        MAP
        + ROIS
        + """
layer { name: "pool" type: "ROIPooling" bottom: "map" bottom: "rois" top: "pool"
  roi_pooling_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.0625 } }
layer { name: "fc6" type: "InnerProduct" bottom: "pool" top: "fc6" inner_product_param { num_output: 7 } }
layer { name: "relu6" type: "ReLU" bottom: "fc6" top: "fc6" }
layer { name: "drop6" type: "Dropout" bottom: "fc6" top: "fc6" }
layer { name: "cls" type: "InnerProduct" bottom: "fc6" top: "cls" inner_product_param { num_output: 4 } }
layer { name: "prob" type: "Softmax" bottom: "cls" top: "prob" }
layer { name: "ps" type: "PSROIPooling" bottom: "map" bottom: "rois" top: "ps"
  psroi_pooling_param { spatial_scale: 0.0625 output_dim: 2 group_size: 3 } }
layer { name: "ave" type: "Pooling" bottom: "ps" top: "ave" pooling_param { pool: AVE kernel_size: 3 stride: 3 } }
layer { name: "ps_prob" type: "Softmax" bottom: "ave" top: "ps_prob" }
layer { name: "ps_prob_reshape" type: "Reshape" bottom: "ps_prob" top: "ps_flat" reshape_param { shape { dim: -1 dim: 2 } } }
"""
    )
    net = Net(parse_net(head), TEST)
    net.blobs["rois"].reshape(0, 5)
    shapes = {name: array.shape for name, array in net.forward().items()}
    assert shapes == {"prob": (0, 4), "ps_flat": (0, 2)}


FILES = {
    "empty": b"",
    "random": np.random.default_rng(1).bytes(4000),
    "zeros": bytes(1000),
    "text": b"name: 'a net'\nlayer { name: 'x' type: 'Input' top: 'x' }\n",
}


@pytest.mark.parametrize("content", FILES)
def test_wrong_weights_files(content: str, tmp_path: Path) -> None:
    (tmp_path / "net.caffemodel").write_bytes(FILES[content])
    net = roi_net("ROIPooling")
    with pytest.raises(WeightsError, match=re.escape(str(tmp_path / "net.caffemodel"))):
        net.copy_from(tmp_path / "net.caffemodel")


@pytest.mark.parametrize("content", ["empty", "random", "zeros"])
def test_wrong_prototxts(content: str, tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_bytes(FILES[content])
    with pytest.raises(PrototxtError, match=re.escape(str(tmp_path / "net.prototxt"))):
        Net(tmp_path / "net.prototxt", TEST)


IP = """layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 6 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 50 weight_filler { type: "xavier" } } }
"""


def test_swapped_and_truncated_files(tmp_path: Path) -> None:
    set_random_seed(1)
    prototxt, weights = tmp_path / "net.prototxt", tmp_path / "net.caffemodel"
    prototxt.write_text(IP)
    net = Net(prototxt, TEST)
    net.save(weights)
    with pytest.raises(PrototxtError, match="caffemodel"):
        Net(weights, TEST, weights=prototxt)
    with pytest.raises(WeightsError, match="prototxt"):
        net.copy_from(prototxt)
    before = [blob.data.copy() for blob in net.params["ip"]]
    whole = weights.read_bytes()
    cut = tmp_path / "cut.caffemodel"
    for length in range(1, len(whole), 37):
        cut.write_bytes(whole[:length])
        try:
            net.copy_from(cut)
        except WeightsError as error:
            assert "cut.caffemodel" in str(error)
    for blob, data in zip(net.params["ip"], before, strict=True):
        np.testing.assert_array_equal(blob.data, data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('layer { name: "ip" type: "InnerProduct" bottom: "data" top: "x" top: "x" }', 'top "x" is named twice'),
        (
            'layer { name: "ip" type: "InnerProduct" bottom: "data" top: "data2" inner_product_param { num_output: 0 } }',
            "num_output",
        ),
        ('layer { name: "c" type: "Concat" bottom: "data" bottom: "other" top: "c" }', 'bottom "other" is not produced'),
        ('layer { name: "c" type: CONVOLUTION bottom: "data" top: "c" }', "CONVOLUTION"),
        ('layers { name: "c" type: "Convolution" bottom: "data" top: "c" }', "layers"),
    ],
)
def test_wrong_layers(text: str, message: str) -> None:
    with pytest.raises(Error, match=message):
        Net(parse_net(IP + text, "net.prototxt"), TEST)
