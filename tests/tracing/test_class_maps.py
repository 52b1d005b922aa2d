"""Grad-CAM against plain loops from the paper's formula, and against CAM; the scores that it takes, and its errors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from detector_nets import BLOB, CELLS, YOLOS
from numpy.typing import NDArray
from PIL import Image

from minicaffe import TEST, Error, Net, set_random_seed
from minicaffe.cli import main
from minicaffe.data.images import load_image
from minicaffe.data.settings import read_settings
from minicaffe.detection.detect import detect
from minicaffe.detection.families import detect_ssd
from minicaffe.formats.prototxt import parse_net
from minicaffe.tracing.class_maps import class_map, class_score, class_scores
from minicaffe.tracing.trace_facts import found_detections

Floats = NDArray[np.floating[Any]]
SHAPES = Path(__file__).parents[2] / "examples" / "shapes"
SCENE = (440, 337)
"""Width and height of its scene."""

HEAD = """input: "data" input_shape { dim: 1 dim: 3 dim: 8 dim: 11 }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 5 kernel_h: 3 kernel_w: 5 weight_filler { type: "msra" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
"""
END = """
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""
FILLERS = 'weight_filler { type: "msra" } bias_filler { type: "gaussian" }'
TWO_LAYERS = (
    HEAD
    + f"""layer {{ name: "hidden" type: "InnerProduct" bottom: "conv" top: "hidden"
  inner_product_param {{ num_output: 9 {FILLERS} }} }}
layer {{ name: "relu2" type: "ReLU" bottom: "hidden" top: "hidden" }}
layer {{ name: "ip" type: "InnerProduct" bottom: "hidden" top: "ip" inner_product_param {{ num_output: 4 {FILLERS} }} }}"""
    + END
)
AVERAGE = (
    HEAD
    + f"""layer {{ name: "gap" type: "Pooling" bottom: "conv" top: "gap" pooling_param {{ pool: AVE global_pooling: true }} }}
layer {{ name: "ip" type: "InnerProduct" bottom: "gap" top: "ip" inner_product_param {{ num_output: 4 {FILLERS} }} }}"""
    + END
)


def run(text: str, seed: int = 4) -> Net:
    set_random_seed(seed)
    net = Net(parse_net(text), TEST)
    net.forward(data=np.random.default_rng(seed).standard_normal((1, 3, 8, 11)))
    return net


def plain_map(net: Net, k: int) -> Floats:
    """Return Grad-CAM of class k at the maps of conv after its ReLU, in plain loops: y is hidden's and ip's."""
    maps = net.blobs["conv"].data[0].astype(float)
    (w1, b1), (w2, _) = ([blob.data.astype(float) for blob in net.params[name]] for name in ("hidden", "ip"))
    channels, height, width = maps.shape
    gradient = np.zeros(maps.shape)
    for h in range(len(w1)):
        if float(w1[h] @ maps.ravel() + b1[h]) <= 0:
            continue  # ReLU
        for c in range(channels):
            for i in range(height):
                for j in range(width):
                    gradient[c, i, j] += w2[k, h] * w1[h, (c * height + i) * width + j]
    alpha = [sum(gradient[c, i, j] for i in range(height) for j in range(width)) / (height * width) for c in range(channels)]
    return np.array(
        [[max(0.0, sum(alpha[c] * maps[c, i, j] for c in range(channels))) for j in range(width)] for i in range(height)]
    )


@pytest.mark.parametrize("k", range(4))
def test_the_papers_formula_in_plain_loops(k: int) -> None:
    net = run(TWO_LAYERS)
    wanted = plain_map(net, k)
    for layer in ("conv", "relu"):  # the ReLU works in place: both are the maps after it
        found = class_map(net, layer, class_score(net, f"class:{k}", None))
        np.testing.assert_allclose(found.map, wanted, rtol=1e-4, atol=1e-6)
        assert found.map.shape == (6, 7)
        assert found.agrees and found.value == found.map.max()
    assert not any(blob.diff.any() for blob in net.learnable_params)


def test_the_maps_of_the_classes_differ() -> None:
    net = run(TWO_LAYERS)
    maps = [class_map(net, "conv", score).map for score in class_scores(net, None)]
    assert len(maps) == 4 and sum(one.any() for one in maps) >= 2
    assert np.abs(maps[0] - maps[1]).max() > 0.01


@pytest.mark.parametrize("k", range(4))
def test_with_an_average_pooling_it_is_cam(k: int) -> None:
    """CAM (Zhou et al., 2016) is the sum of the maps by the class's weights; here its positive part, divided by the cells."""
    net = run(AVERAGE)
    cam = np.tensordot(net.params["ip"][0].data[k], net.blobs["conv"].data[0], 1)
    found = class_map(net, "conv", class_score(net, f"class:{k}", None))
    np.testing.assert_allclose(found.map, np.maximum(cam, 0) / (6 * 7), rtol=1e-5, atol=1e-7)
    # the mean of CAM and the bias are the score, so the weights are alpha times the cells
    np.testing.assert_allclose(found.alpha * 42, net.params["ip"][0].data[k], rtol=1e-5)


def test_the_score_before_the_softmax() -> None:
    net = run(AVERAGE)
    best = int(net.blobs["prob"].data[0].argmax())
    score = class_score(net, "best", None, ["a", "b", "c", "d"])
    assert (score.layer, score.element) == (net.index_of("ip"), best)
    prob, y = net.blobs["prob"].data[0, best], net.blobs["ip"].data[0, best]
    assert score.words == f"{'abcd'[best]} {prob:.4f} (ip[0, {best}] = {y:.6g})"


def test_the_text() -> None:
    found = class_map(run(TWO_LAYERS), "conv", class_score(run(TWO_LAYERS), "class:2", None), (1, 4))
    lines = found.text().splitlines()
    assert lines[0].startswith("Grad-CAM of class 2 ") and lines[0].endswith(
        f'at the layer "conv": L[1, 4] = {found.value:.6g}'
    )
    assert sum(line.startswith("  conv[0, ") for line in lines) == 5
    assert lines[-1].endswith(("within rounding", "equal, bit for bit")) or "within rounding" in lines[-1]
    assert math.isclose(sum(term.product for term in found.terms), found.terms.total(), abs_tol=1e-9)


@pytest.fixture(scope="module")
def rfcn() -> tuple[Net, Any]:
    """The shapes R-FCN after the scene, and its detections."""
    settings = read_settings(SHAPES / "shapes.yml")
    net = Net(SHAPES / "rfcn/test.prototxt", TEST, weights=SHAPES / "rfcn/shapes_rfcn.caffemodel", settings=settings)
    image = load_image(SHAPES / "scene.png")
    detect(net, image)
    return net, found_detections(net, image)


def test_a_detection(rfcn: tuple[Net, Any]) -> None:
    """The score is that of its roi and class; the map is greatest at the object."""
    net, found = rfcn
    score = class_score(net, "detection:0", found, ["__background__", "circle", "square", "triangle"])
    roi, k = int(found.sources[0]), int(found.classes[0])
    assert net.layers[score.layer].name == "ave_cls_score_rois" and score.element == 4 * roi + k
    assert score.name == f"detection 0, circle {found.scores[0]:.4f}" and score.box == found.boxes[0].tolist()
    one = class_map(net, "conv_new_1", score)
    assert one.agrees
    height, width = one.map.shape
    row, column = one.at
    x1, y1, x2, y2 = found.boxes[0]
    place = (column + 0.5) * (SCENE[0] / width), (row + 0.5) * (SCENE[1] / height)
    assert x1 - 8 <= place[0] <= x2 + 8 and y1 - 8 <= place[1] <= y2 + 8


def test_the_scores_of_a_page_are_the_best_detections(rfcn: tuple[Net, Any]) -> None:
    net, found = rfcn
    assert [score.name.split(",")[0] for score in class_scores(net, found)] == [f"detection {k}" for k in range(8)]
    assert (found.scores >= 0.5).sum() == 8


def test_maps_that_the_score_does_not_use() -> None:
    net = run(TWO_LAYERS)
    net.params["hidden"][0].data[...] = 0
    net.forward()
    found = class_map(net, "conv", class_score(net, "best"))
    line = "none of the 6 x 7 cells is above 0: the score depends on none of these maps, so name another layer"
    assert f"  {line}" in found.text().splitlines()


@pytest.mark.parametrize("kind", YOLOS)
def test_the_scores_of_a_yolo_are_in_no_blob(kind: str) -> None:
    net = Net(parse_net(f'{BLOB} {CELLS} layer {{ name: "found" bottom: "cells" top: "found" {YOLOS[kind]} }}'), TEST)
    net.params["cells"][1].data[...] = [0, 0, 0, 0, 9, -9, 9]
    image = np.full((16, 24, 3), 104, np.uint8)
    detect_ssd(net, image)
    with pytest.raises(Error, match=r"^no blob of this net holds the scores of its detections$"):
        class_score(net, "best", found_detections(net, image))


ERRORS = {
    "cat": "--cam cat: give best, class:K or detection:K",
    "class:x": "--cam class:x: give best, class:K or detection:K",
    "class:4": "--cam class:4: the net has 4 classes: give class:0 to class:3",
    "detection:0": "--cam detection:0: no detections: the net is no detector, or --image is not given",
}


@pytest.mark.parametrize("wanted", ERRORS)
def test_unknown_scores(wanted: str) -> None:
    with pytest.raises(Error) as error:
        class_score(run(AVERAGE), wanted, None)
    assert str(error.value) == ERRORS[wanted]


def test_errors(rfcn: tuple[Net, Any]) -> None:
    net = run(TWO_LAYERS)
    score = class_score(net, "best", None)
    with pytest.raises(
        Error, match=r'"hidden": a class activation map needs maps .*, but its top has shape \(1, 9\): .* "relu"'
    ):
        class_map(net, "hidden", score)
    with pytest.raises(Error, match='the net has no layer "conv9"'):
        class_map(net, "conv9", score)
    with pytest.raises(Error, match=r"--at 1,7: the map has 6 x 7 cells: give a row and a column"):
        class_map(net, "conv", score, (1, 7))
    net, found = rfcn
    with pytest.raises(Error, match="--cam class:1: the net is no classifier"):
        class_score(net, "class:1", found)
    with pytest.raises(Error, match=rf"--cam detection:{len(found)}: the image has {len(found)} detections"):
        class_score(net, f"detection:{len(found)}", found)
    score = class_score(net, "best", found)
    with pytest.raises(
        Error, match=r'"rpn_conv/3x3": detection 0, .* does not depend on it: name another layer, such as "rfcn_cls"'
    ):
        class_map(net, "rpn_conv/3x3", score)
    with pytest.raises(Error, match="needs maps of the image"):
        class_map(net, "psroipooled_cls_rois", score)


def test_the_named_layer_is_one_of_the_prototxt_with_maps() -> None:
    """Not the split of two readers, nor a Permute, whose top also has four axes."""
    net = run(
        HEAD
        + """layer { name: "other" type: "Sigmoid" bottom: "conv" top: "other" }
layer { name: "perm" type: "Permute" bottom: "conv" top: "perm" permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "fc" type: "InnerProduct" bottom: "perm" top: "fc" inner_product_param { num_output: 5 } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }"""
    )
    assert len(net.layers) > 6  # with the split
    with pytest.raises(Error, match='name another layer, such as "relu"'):
        class_map(net, "fc", class_score(net, "best"))


CONV2 = ("conv2", "Convolution", f"convolution_param {{ num_output: 8 kernel_size: 2 {FILLERS} }}")


def permute(name: str, *order: int) -> tuple[str, str, str]:
    return name, "Permute", f"permute_param {{ {' '.join(f'order: {axis}' for axis in order)} }}"


def reshape(name: str, *dims: int) -> tuple[str, str, str]:
    return name, "Reshape", f"reshape_param {{ shape {{ {' '.join(f'dim: {length}' for length in dims)} }} }}"


def after_maps(*layers: tuple[str, str, str]) -> Net:
    """Return a classifier in which these layers (name, type, fields) follow conv's maps (1, 5, 6, 7)."""
    text = ""
    for bottom, (name, kind, fields) in zip(["conv", *(name for name, _, _ in layers)], layers):
        text += f'layer {{ name: "{name}" type: "{kind}" bottom: "{bottom}" top: "{name}" {fields} }}\n'
    end = f"""layer {{ name: "ip" type: "InnerProduct" bottom: "{layers[-1][0]}" top: "ip"
  inner_product_param {{ num_output: 4 {FILLERS} }} }}"""
    return run(HEAD + text + end + END)


@pytest.mark.parametrize(
    "layers",
    [
        [permute("y", 0, 2, 3, 1)],
        [permute("first", 0, 2, 3, 1), ("y", "Sigmoid", "")],
        [permute("y", 0, 1, 3, 2)],
        [reshape("y", 1, 1, -1, 7)],
        [("first", "Flatten", ""), reshape("y", 1, 5, 7, 6)],
        [("y", "Flip", "flip_param { flip_width: true flip_height: false }")],
        [reshape("five", 1, 5, 1, 6, 7), permute("swap", 0, 1, 2, 4, 3), reshape("y", 1, 5, 6, 7)],
    ],
)
def test_a_layer_that_moves_the_cells_is_refused(layers: list[tuple[str, str, str]]) -> None:
    net = after_maps(*layers)
    assert len(net.blobs["y"].shape) == 4
    with pytest.raises(Error, match=r'"y": a class activation map needs maps .* it moves their cells: .* such as "relu" '):
        class_map(net, "y", class_score(net, "best"))


@pytest.mark.parametrize(
    ("layers", "size"),
    [
        ([permute("first", 0, 2, 3, 1), permute("y", 0, 3, 1, 2)], (6, 7)),
        ([reshape("first", 1, 1, -1, 7), ("second", "TanH", ""), reshape("y", 1, 5, 6, 7)], (6, 7)),
        ([reshape("five", 1, 1, 5, 6, 7), permute("swap", 0, 2, 1, 3, 4), reshape("y", 1, 5, 6, 7)], (6, 7)),
        ([("y", "ShuffleChannel", "shuffle_channel_param { group: 5 }")], (6, 7)),
        ([("conv2", *CONV2[1:]), ("y", "PixelShuffle", "pixelshuffle_param { upscale_factor: 2 }")], (10, 12)),
        ([permute("first", 0, 2, 3, 1), ("y", *CONV2[1:])], (6, 4)),
    ],
)
def test_maps_whose_cells_lie_where_their_pixels_do(layers: list[tuple[str, str, str]], size: tuple[int, int]) -> None:
    net = after_maps(*layers)
    assert class_map(net, "y", class_score(net, "best")).map.shape == size


def test_the_nearest_layer_before_it_is_named() -> None:
    """Not the last one of the net, which is nearer to the score."""
    net = after_maps(permute("perm", 0, 2, 3, 1), CONV2)
    score = class_score(net, "best")
    with pytest.raises(Error, match=r'but it moves their cells: name another layer, such as "relu" '):
        class_map(net, "perm", score)
    with pytest.raises(Error, match=r'but its top has shape \(1, 4\): name another layer, such as "conv2" '):
        class_map(net, "ip", score)


def test_the_command(tmp_path: Path) -> None:
    files = [str(SHAPES / "rfcn/test.prototxt"), str(SHAPES / "rfcn/shapes_rfcn.caffemodel"), "conv_new_1"]
    options = ["--image", str(SHAPES / "scene.png"), "--cfg", str(SHAPES / "shapes.yml")]
    drawn = tmp_path / "cam.png"
    done = CliRunner().invoke(main, ["explain", *files, *options, "--cam", "best", "--draw", str(drawn)])
    assert done.stdout.startswith("Grad-CAM of detection 0, class 1 ") and done.stdout.endswith(f"written: {drawn}\n")
    with Image.open(drawn) as picture:
        pixels = np.asarray(picture, float)
    warm = (pixels[..., 0] - pixels[..., 2]) > 40  # orange: the map; the photo is grey
    assert picture.size == SCENE and 0.002 < warm.mean() < 0.3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--draw", "cam.png"], "--draw needs --cam: explain draws only class activation maps"),
        (["--cam", "best", "--draw", "cam.png"], "--draw needs the --image on which the map is drawn"),
        (["--cam", "best", "--backward"], "--cam cannot be used with --backward: it takes only --at H,W"),
        (["--cam", "best", "--roi", "0"], "--cam cannot be used with --roi: it takes only --at H,W"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], message: str) -> None:
    digits = SHAPES.parent / "digits"
    files = [str(digits / "test.prototxt"), str(digits / "digits.caffemodel"), "conv2"]
    done = CliRunner().invoke(main, ["explain", *files, *options])
    assert done.exit_code == 1 and done.stderr == f"minicaffe: {message}\n"
