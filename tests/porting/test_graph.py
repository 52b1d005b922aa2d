"""The graph of a prototxt's layers: values of blobs changed in place, what depends on what, and layers that are left out."""

from __future__ import annotations

from minicaffe.formats.prototxt import parse_net
from minicaffe.porting.graph import Graph, bypass, free_name
from minicaffe.proto import caffe_pb2

TEXT = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "both" type: "Split" bottom: "conv" top: "a" top: "b" }
layer { name: "left" type: "Power" bottom: "a" top: "left" }
layer { name: "sum" type: "Eltwise" bottom: "left" bottom: "b" bottom: "shift" top: "sum" }
layer { name: "quiet" type: "Silence" bottom: "b" }
"""


def layers() -> list[caffe_pb2.LayerParameter]:
    return list(parse_net(TEXT).param.layer)


def test_a_blob_changed_in_place_has_two_values() -> None:
    graph = Graph(layers())
    assert graph.reads[1] == [(0, 0)] and graph.reads[2] == [(1, 0)] and graph.last["conv"] == (1, 0)
    assert graph.readers[0, 0] == [1] and graph.readers[1, 0] == [2] and graph.name((0, 0)) == "conv"


def test_blobs_that_no_layer_makes() -> None:
    graph = Graph(layers())
    assert graph.inputs == ["data", "shift"]
    assert graph.reads[4] == [(3, 0), (2, 1), None] and graph.makers(4) == [3, 2]


def test_what_depends_on_what() -> None:
    graph = Graph(layers())
    assert graph.after([(2, 0)]) == {3, 4} and graph.after([(2, 1)]) == {4, 5}
    assert graph.before([(3, 0)]) == {0, 1, 2, 3} and graph.before([(0, 0)]) == {0}
    assert graph.unread() == [(4, 0)]


def test_layers_keep_their_numbers() -> None:
    params = layers()
    graph = Graph({7: params[0], 9: params[1]})
    assert graph.reads[9] == [(7, 0)] and graph.last == {"conv": (9, 0)}


def test_readers_of_a_layer_left_out_read_its_bottom() -> None:
    kept = bypass(layers(), lambda layer: layer.type == "Split")
    assert [(layer.name, list(layer.bottom)) for layer in kept[2:]] == [
        ("left", ["conv"]),
        ("sum", ["left", "conv", "shift"]),
        ("quiet", ["conv"]),
    ]


def test_a_name_written_anew_no_longer_stands_for_the_bottom() -> None:
    params = layers()
    params[3].top[0] = "b"
    kept = bypass(params, lambda layer: layer.type == "Split")
    assert list(kept[3].bottom) == ["left", "b", "shift"]


def test_free_names() -> None:
    taken = {"x"}
    assert [free_name(taken, "x"), free_name(taken, "x"), free_name(taken, "y")] == ["x_2", "x_3", "y"]
