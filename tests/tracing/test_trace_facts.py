"""Where a traced backward pass starts, against finite differences of what it says the gradients are of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from detector_nets import BLOB, CELLS, YOLOS

from minicaffe import TEST, TRAIN, Error, Net
from minicaffe.data.images import load_image
from minicaffe.data.settings import read_settings
from minicaffe.detection.detect import detect
from minicaffe.detection.families import detect_ssd
from minicaffe.formats.prototxt import parse_net
from minicaffe.tracing.trace_facts import found_detections, gradient_seed

SHAPES = Path(__file__).parents[2] / "examples" / "shapes"
NAMES = ["__background__", "circle", "square", "triangle"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "layer"), [("rfcn", "rfcn_cls"), ("faster_rcnn", "cls_score")])
def test_a_detections_score(kind: str, layer: str) -> None:
    """The last layer with weights before the scores does not move the rois."""
    net = Net(
        SHAPES / kind / "test.prototxt",
        TEST,
        weights=SHAPES / kind / f"shapes_{kind}.caffemodel",
        settings=read_settings(SHAPES / "shapes.yml"),
    )
    image = load_image(SHAPES / "scene.png")
    detect(net, image)
    found = found_detections(net, image)
    assert found is not None and found.sources is not None
    k = int(np.flatnonzero((found.scores > 0.2) & (found.scores < 0.9))[0])  # its score moves
    seed = gradient_seed(net, f"detection:{k}", None, found, NAMES)
    roi, which = int(found.sources[k]), int(found.classes[k])
    assert seed.words == f"the score of detection {k}, {NAMES[which]} {found.scores[k]:.4f}: cls_prob[{roi}, {which}]"
    assert net.blobs["cls_prob"].data.reshape(-1, 4)[roi, which] == found.scores[k]
    net.backward_from_to(seed.layer, 0)
    bias = net.params[layer][1]
    largest = int(np.abs(bias.diff).argmax())
    expected = bias.diff[largest]
    scores = []
    for step in (0.05, -0.1):
        bias.data[largest] += step
        net.forward(start=layer)
        scores.append(net.blobs["cls_prob"].data.reshape(-1, 4)[roi, which].copy())
    assert abs(expected) > 1e-3
    np.testing.assert_allclose(expected, (scores[0] - scores[1]) / 0.1, rtol=0.02)
    assert np.abs(net.blobs["data"].diff).max() > 0, "it reaches the image"


SSD = """
name: "ssd" input: "data" input_shape { dim: 1 dim: 3 dim: 8 dim: 12 }
layer { name: "map" type: "Pooling" bottom: "data" top: "map" pooling_param { kernel_h: 8 kernel_w: 6 stride: 6 pool: AVE } }
layer { name: "loc" type: "Convolution" bottom: "map" top: "loc" convolution_param { num_output: 4 kernel_size: 1 } }
layer { name: "at" type: "Permute" bottom: "loc" top: "at" permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "codes" type: "Flatten" bottom: "at" top: "codes" }
layer { name: "conf" type: "Convolution" bottom: "map" top: "conf" convolution_param { num_output: 3 kernel_size: 1 } }
layer { name: "by" type: "Permute" bottom: "conf" top: "by" permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "scores" type: "Flatten" bottom: "by" top: "scores" }
layer { name: "prior" type: "PriorBox" bottom: "map" bottom: "data" top: "prior" prior_box_param { min_size: 4 } }
layer { name: "found" type: "DetectionOutput" bottom: "codes" bottom: "scores" bottom: "prior" top: "found"
  detection_output_param { num_classes: 3 confidence_threshold: 0.1 code_type: CENTER_SIZE } }
"""


def test_a_score_of_an_ssd_is_told_by_its_box_where_two_are_equal() -> None:
    net = Net(parse_net(SSD), TEST)
    for name in ("loc", "conf"):
        for blob in net.params[name]:
            blob.data[...] = 0
    net.params["conf"][1].data[...] = [0.1, 0.05, 0.75]
    image = np.full((16, 24, 3), 104, np.uint8)
    detect_ssd(net, image)
    found = found_detections(net, image)
    assert found is not None and found.scores.tolist() == [0.75, 0.75]
    assert found.boxes[0, 0] < found.boxes[1, 0], "one in each half of the picture"
    for k, prior in enumerate((0, 1)):
        seed = gradient_seed(net, f"detection:{k}", None, found, None)
        assert seed.words == f"the score of detection {k}, class 2 0.7500: scores[0, {3 * prior + 2}]"
        net.backward_from_to(seed.layer, 0)
        assert net.params["conf"][1].diff.tolist() == [0, 0, 1]
        assert not net.params["loc"][1].diff.any()
        assert net.blobs["conf"].diff[0, 2].ravel().tolist() == [float(prior == 0), float(prior == 1)]


@pytest.mark.parametrize("kind", YOLOS)
def test_the_scores_of_a_yolo_are_in_no_blob(kind: str) -> None:
    net = Net(parse_net(f'{BLOB} {CELLS} layer {{ name: "found" bottom: "cells" top: "found" {YOLOS[kind]} }}'), TEST)
    net.params["cells"][1].data[...] = [0, 0, 0, 0, 9, -9, 9]
    image = np.full((16, 24, 3), 104, np.uint8)
    detect_ssd(net, image)
    found = found_detections(net, image)
    assert found is not None and len(found)
    assert gradient_seed(net, None, None, found, None).words == "the sum of found"
    with pytest.raises(Error, match="--seed-gradient detection:0: no blob of this net holds the scores"):
        gradient_seed(net, "detection:0", None, found, None)


LOSSES = """
name: "losses" input: "x" input_shape { dim: 2 dim: 5 }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 3 } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""
LOSS = 'layer { name: "t" type: "Input" top: "t" input_param { shape { dim: 2 dim: 3 } } }'
LOSS += 'layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "t" top: "loss" }'


def test_losses_come_first_else_ones() -> None:
    net = Net(parse_net(LOSSES + LOSS), TRAIN)
    net.forward()
    assert gradient_seed(net, None, None, None, None).words == "the loss loss"
    net = Net(parse_net(LOSSES), TEST)
    net.params["ip"][0].data[...] = np.random.default_rng(0).normal(size=(3, 5))
    net.forward(x=np.random.default_rng(1).normal(size=(2, 5)))
    seed = gradient_seed(net, None, None, None, None)
    assert seed.words == "the sum of prob (prob is a Softmax's: its sum is always 1, so its gradient is nothing but rounding)"
    net.backward_from_to(seed.layer, 0)
    assert np.abs(net.blobs["x"].diff).max() < 1e-6
    seed = gradient_seed(net, "ones", "ip", None, None)
    assert seed == (net.index_of("ip"), "the sum of ip")
    net.backward_from_to(seed.layer, 0)
    np.testing.assert_allclose(net.blobs["x"].diff, np.tile(net.params["ip"][0].data.sum(axis=0), (2, 1)), rtol=1e-5)


@pytest.mark.parametrize(
    ("wanted", "until", "message"),
    [
        ("loss", None, "no layer of the net has a loss; give loss, ones or detection:K"),
        ("sum", None, "--seed-gradient sum: give loss, ones or detection:K"),
        ("detection:0", None, "no detections: the net is no detector, or --image is not given"),
        ("detection:0", "ip", "a detection needs the whole net: leave out --until ip"),
    ],
)
def test_errors(wanted: str, until: str | None, message: str) -> None:
    net = Net(parse_net(LOSSES), TEST)
    with pytest.raises(Error, match=message):
        gradient_seed(net, wanted, until, None, None)
