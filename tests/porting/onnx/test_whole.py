"""A whole detector as a model: the photo's preparation and the boxes against detect's, on the shipped nets and by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("onnx", reason="needs onnx")
pytest.importorskip("onnxruntime", reason="needs onnxruntime")

import onnx

from minicaffe import TEST, Error, Net, export_onnx
from minicaffe.cli import main
from minicaffe.data.image_bytes import read_image
from minicaffe.data.images import prepare_image
from minicaffe.data.settings import settings_from
from minicaffe.detection.rows import prepare_ssd_image
from minicaffe.formats.prototxt import parse_net
from minicaffe.porting.onnx import Whole, compare_with_detect, onnx_model, run_model
from minicaffe.porting.onnx.graph import Graph
from minicaffe.porting.onnx.whole import fitted_photo, scaled_photo

SHAPES = Path(__file__).resolve().parents[3] / "examples" / "shapes"
SCENE = SHAPES / "scene.png"


def shapes_net(kind: str) -> Net:
    folder = SHAPES / kind
    settings = settings_from(SHAPES / "shapes.yml")
    return Net(folder / "test.prototxt", TEST, weights=folder / f"shapes_{kind}.caffemodel", settings=settings, keep="outputs")


def run_graph(g: Graph, outputs: list[str], image: np.ndarray, path: Path) -> list[np.ndarray]:
    from onnx import helper, numpy_helper

    made = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs]
    taken = [helper.make_tensor_value_info("image", onnx.TensorProto.UINT8, ["h", "w", 3])]
    constants = [numpy_helper.from_array(array, name) for name, array in g.constants.items()]
    graph = helper.make_graph(g.nodes, "photo", taken, made, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    found = run_model(path, {"image": image})
    return [found[name] for name in outputs]


@pytest.mark.parametrize("size", [(30, 41), (41, 30), (7, 300), (120, 120), (1, 1), (61, 200)])
def test_the_photo_is_scaled_bit_for_bit(tmp_path: Path, size: tuple[int, int]) -> None:
    """Enlarged, shrunk, bounded by the long side, unchanged."""
    settings = settings_from({"TEST": {"SCALES": [120], "MAX_SIZE": 199}, "PIXEL_MEANS": [[[1.5, 2.25, 3.1]]]})
    image = np.random.default_rng(3).integers(0, 256, (*size, 3), np.uint8)
    g = Graph()
    photo = scaled_photo(g, settings)
    data, info, height, width = run_graph(g, list(photo), image, tmp_path / "m.onnx")
    wanted, wanted_info = prepare_image(image, settings)
    np.testing.assert_array_equal(data, wanted)
    np.testing.assert_array_equal(info, wanted_info)
    assert (height[0], width[0]) == size


@pytest.mark.parametrize("size", [(30, 41), (41, 130), (33, 57), (1, 2)])
def test_the_photo_is_fitted_bit_for_bit(tmp_path: Path, size: tuple[int, int]) -> None:
    image = np.random.default_rng(4).integers(0, 256, (*size, 3), np.uint8)
    g = Graph()
    photo = fitted_photo(g, (33, 57), (104, 117, 123), 0.007843)
    (data,) = run_graph(g, [photo.data], image, tmp_path / "m.onnx")
    np.testing.assert_array_equal(data, prepare_ssd_image(image, (33, 57), (104, 117, 123), 0.007843))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rfcn", "faster_rcnn"])
def test_boxes_are_detects(tmp_path: Path, kind: str) -> None:
    """Boxes per class and class-agnostic ones; photos of three sizes through one model."""
    net, model, whole = shapes_net(kind), tmp_path / "m.onnx", Whole(threshold=0.1, max_detections=9)
    export_onnx(net, model, whole=whole)
    scene = read_image(SCENE)
    for photo in (scene, scene[:200]) if kind == "rfcn" else (np.repeat(scene[:, :90], 2, axis=1),):
        found = compare_with_detect(net, model, photo, whole)
        assert all(one.agrees for one in found), found
        assert 0 < found[0].shape[0] <= 9
    none = np.full((50, 60, 3), 128, np.uint8)
    nothing = replace(whole, threshold=1.0)
    export_onnx(net, model, whole=nothing)
    assert [one.shape for one in compare_with_detect(net, model, none, nothing)] == [(0, 4), (0,), (0,)]


def test_boxes_without_the_photo(tmp_path: Path) -> None:
    net, whole = shapes_net("rfcn"), Whole(photo=False, threshold=0.1)
    export_onnx(net, tmp_path / "m.onnx", whole=whole)
    assert all(one.agrees for one in compare_with_detect(net, tmp_path / "m.onnx", read_image(SCENE), whole))
    names = [item.name for item in onnx.load(tmp_path / "m.onnx").graph.input]
    assert names == ["data", "im_info", "image_size"]


SSD = """
input: "data" input_shape { dim: 1 dim: 3 dim: 12 dim: 16 }
layer { name: "loc" type: "Convolution" bottom: "data" top: "loc" convolution_param { num_output: 8 kernel_size: 5 stride: 4
  weight_filler { type: "gaussian" std: 0.01 } } }
layer { name: "conf" type: "Convolution" bottom: "data" top: "conf" convolution_param { num_output: 6 kernel_size: 5 stride: 4
  weight_filler { type: "gaussian" std: 0.01 } } }
layer { name: "prior" type: "PriorBox" bottom: "loc" bottom: "data" top: "prior" prior_box_param {
  min_size: 5 max_size: 9 variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2 } }
layer { name: "lp" type: "Permute" bottom: "loc" top: "lp" permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "lf" type: "Flatten" bottom: "lp" top: "lf" }
layer { name: "cp" type: "Permute" bottom: "conf" top: "cp" permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "cr" type: "Reshape" bottom: "cp" top: "cr" reshape_param { shape { dim: 0 dim: -1 dim: 3 } } }
layer { name: "cs" type: "Softmax" bottom: "cr" top: "cs" softmax_param { axis: 2 } }
layer { name: "cf" type: "Flatten" bottom: "cs" top: "cf" }
layer { name: "out" type: "DetectionOutput" bottom: "lf" bottom: "cf" bottom: "prior" top: "out" detection_output_param {
  num_classes: 3 nms_param { nms_threshold: 0.45 } keep_top_k: 20 confidence_threshold: 0.1 code_type: CENTER_SIZE } }
"""


def test_an_ssd(tmp_path: Path) -> None:
    net = Net(parse_net(SSD), TEST)
    whole = Whole(threshold=0.3, max_detections=7, means=(90, 100, 110), scale_factor=0.5)
    export_onnx(net, tmp_path / "m.onnx", whole=whole)
    for size in ((40, 30), (12, 16)):
        photo = np.random.default_rng(5).integers(0, 256, (*size, 3), np.uint8)
        found = compare_with_detect(net, tmp_path / "m.onnx", photo, whole)
        assert all(one.agrees for one in found), found
        assert found[0].shape[0] > 2


def test_a_model_that_finds_other_boxes_is_told(tmp_path: Path) -> None:
    net, whole = shapes_net("rfcn"), Whole(threshold=0.1)
    export_onnx(net, tmp_path / "m.onnx", whole=whole)
    other = Net(net.file, TEST, weights=net.weights_files[0], settings=settings_from({"TEST": {"SCALES": [250], "NMS": 0.7}}))
    assert not all(one.agrees for one in compare_with_detect(other, tmp_path / "m.onnx", read_image(SCENE), whole))


@pytest.mark.parametrize(
    ("net", "said"),
    [
        (SSD.replace('"out"', '"boxes"'), 'a blob has the name "boxes"'),
        ('input: "data" input_shape { dim: 1 dim: 3 dim: 4 dim: 4 }', "a detector's inputs are data and im_info"),
    ],
)
def test_what_is_no_detector(tmp_path: Path, net: str, said: str) -> None:
    with pytest.raises(Error, match=said):
        export_onnx(Net(parse_net(net), TEST), tmp_path / "m.onnx", whole=Whole())
    assert list(tmp_path.iterdir()) == []


def test_sides_that_are_multiples_are_not_exported(tmp_path: Path) -> None:
    settings = settings_from({"TEST": {"SCALE_MULTIPLE_OF": 32}})
    with pytest.raises(Error, match="SCALE_MULTIPLE_OF is not supported"):
        export_onnx(Net(SHAPES / "rfcn" / "test.prototxt", TEST, settings=settings), tmp_path / "m.onnx", whole=Whole())


def export(*words: object) -> Any:
    folder = SHAPES / "rfcn"
    return CliRunner().invoke(
        main, ["export", str(folder / "test.prototxt"), str(folder / "shapes_rfcn.caffemodel"), *map(str, words)]
    )


def test_the_command(tmp_path: Path) -> None:
    out, names = tmp_path / "m.onnx", SHAPES / "classes.txt"
    words = [
        "--with-image",
        "--with-boxes",
        "--cfg",
        SHAPES / "shapes.yml",
        "--classes",
        names,
        "--check",
        "--input",
        f"data={SCENE}",
    ]
    ran = export("-o", out, *words)
    assert ran.exit_code == 0, ran.output
    assert "boxes     8x4" in ran.output and ran.stderr.count("Preprocessing: ") == 1
    facts = {item.key: item.value for item in onnx.load(out).metadata_props}
    assert facts["image"] == "uint8 (height, width, 3): blue, green, red"
    assert json.loads(facts["class_names"]) == ["__background__", *names.read_text().split()][-4:]
    assert facts["threshold"] == "0.5"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--threshold", 0.3], "--threshold does nothing without --with-boxes"),
        (["--with-boxes", "--until", "conv1"], "--until does not work"),
        (["--with-image", "--check"], "give --with-boxes too"),
    ],
)
def test_options_that_do_not_go_together(tmp_path: Path, words: list[object], said: str) -> None:
    ran = export("-o", tmp_path / "m.onnx", *words)
    assert ran.exit_code == 1
    assert said in " ".join(ran.output.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("classes", "last"), [(21, "tvmonitor"), (81, "toothbrush"), (4, None)])
def test_the_names_of_published_detectors(classes: int, last: str | None) -> None:
    """As detect has them, without --classes."""
    text = """input: "data" input_shape { dim: 1 dim: 3 dim: 8 dim: 9 } input: "rois" input_shape { dim: 2 dim: 5 }"""
    for name, count in (("cls_prob", classes), ("bbox_pred", 4 * classes)):
        text += f"""layer {{ name: "{name}" type: "InnerProduct" bottom: "rois" top: "{name}"
            inner_product_param {{ num_output: {count} }} }}"""
    net = Net(parse_net(text, "net.prototxt"), TEST)
    assert names_in(onnx_model(net)[0]).get(classes - 1) == last
    with pytest.raises(Error, match=rf"net.prototxt: 3 names of classes .*, but cls_prob has {classes} classes"):
        onnx_model(net, classes=["a", "b", "c"])


def test_classes_without_names_get_detects() -> None:
    """A model that gives boxes names all its classes; the net alone those that it knows."""
    net = shapes_net("rfcn")
    assert names_in(onnx_model(net)[0]) == {}
    assert names_in(onnx_model(net, whole=Whole())[0]) == {0: "__background__", 1: "class 1", 2: "class 2", 3: "class 3"}
    assert names_in(onnx_model(net, classes=["b", "x", "y", "z"])[0])[3] == "z"


def names_in(model: Any) -> dict[int, str]:
    """Return the names in a model's metadata, by number."""
    facts = {one.key: one.value for one in model.metadata_props}
    return dict(enumerate(json.loads(facts.get("class_names", "[]"))))
