"""The command for a net, and its classes, by its inputs and outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from minicaffe import TEST, Error, Net
from minicaffe.detection.segmentation import score_blob
from minicaffe.detection.task import class_names, read_class_names, task_of
from minicaffe.formats.prototxt import parse_net

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
IMAGE = 'input: "data" input_shape { dim: 1 dim: 3 dim: 9 dim: 8 } '
CONV = 'layer { name: "c" type: "Convolution" bottom: "data" top: "c" convolution_param { num_output: %d kernel_size: 2 } } '
INNER = 'layer { name: "c" type: "InnerProduct" bottom: "data" top: "c" inner_product_param { num_output: 7 } } '
SOFTMAX = 'layer { name: "p" type: "Softmax" bottom: "c" top: "p" } '


def net_of(text: str) -> Net:
    return Net(parse_net(text, "net.prototxt"), TEST)


@pytest.mark.parametrize(
    ("text", "command", "classes"),
    [
        (IMAGE + INNER + SOFTMAX, "classify", 7),
        (IMAGE + INNER, "run", None),
        (IMAGE.replace("dim: 3", "dim: 5") + INNER + SOFTMAX, "run", None),
        (IMAGE + CONV % 21 + SOFTMAX, "segment", 21),
        (IMAGE + CONV % 300, "run", None),
        (IMAGE + CONV % 1 + 'layer { name: "p" type: "Sigmoid" bottom: "c" top: "p" }', "segment", 1),
        (IMAGE + CONV % 57, "pose", None),
        (IMAGE + IMAGE.replace("data", "other") + CONV % 2, "flow", None),
    ],
)
def test_tasks(text: str, command: str, classes: int | None) -> None:
    task = task_of(net_of(text))
    assert (task.command, task.classes and task.classes.number) == (command, classes)


def test_of_several_maps_the_one_made_of_the_others() -> None:
    """As HED's, also if a net copies scores for two readers; maps that do not depend on each other need a choice."""
    conv = (
        'layer { name: "%s" type: "Convolution" bottom: "data" top: "%s" convolution_param { num_output: 1 kernel_size: 2 } } '
    )
    sigmoid = 'layer { name: "p%s" type: "Sigmoid" bottom: "%s" top: "p%s" } '
    sides = IMAGE + "".join(conv % (name, name) + sigmoid % (name, name, name) for name in "ab")
    fused = 'layer { name: "f" type: "Eltwise" bottom: "a" bottom: "b" top: "f" } ' + sigmoid % ("f", "f", "f")
    net = net_of(sides + fused)
    assert net.outputs == ["pa", "pb", "pf"] and score_blob(net, None, net.file) == "pf"
    assert score_blob(net, "pa", net.file) == "pa" and task_of(net).command == "segment"
    with pytest.raises(Error, match=r"2 outputs that hold a score of each class for each pixel; .*: choose one with --blob"):
        score_blob(net_of(sides), None, "net.prototxt")


@pytest.mark.parametrize(
    ("example", "command"), [("shapes/rfcn", "detect"), ("reader", "read"), ("segments", "segment"), ("deformable", "detect")]
)
def test_the_examples(example: str, command: str) -> None:
    assert task_of(Net(EXAMPLES / example / "test.prototxt", TEST)).command == command


def test_names(tmp_path: Path) -> None:
    """A detector's file may leave out the background; a classifier has none."""
    (tmp_path / "names.txt").write_text("circle\nsquare\ntriangle\n")
    detector = Net(EXAMPLES / "shapes" / "rfcn" / "test.prototxt", TEST)
    assert class_names(detector) is None
    assert class_names(detector, read_class_names(detector, str(tmp_path / "names.txt"))) == [
        "__background__", "circle", "square", "triangle"
    ]  # fmt: skip
    classifier = net_of(IMAGE + INNER + SOFTMAX)
    with pytest.raises(Error, match=r"net.prototxt: 3 names of classes \(--classes\), but p has 7 classes"):
        class_names(classifier, read_class_names(classifier, str(tmp_path / "names.txt")))
    assert read_class_names(classifier, None) is None
    assert class_names(net_of(IMAGE + CONV % 21), None) is not None
