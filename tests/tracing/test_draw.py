"""Drawings of nets: what stands in the boxes, where they lie, the files, the command."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import minicaffe as caffe
from minicaffe.cli import main
from minicaffe.errors import Error
from minicaffe.formats.prototxt import parse_net
from minicaffe.tracing import draw
from minicaffe.tracing.draw import arrange
from minicaffe.tracing.draw_layout import WAYPOINTS, layout, ranked

NET = """name: "a <net>"
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN } data_param { batch_size: 32 } }
layer { name: "data" type: "Input" top: "data" include { phase: TEST } input_param { shape { dim: 1 dim: 3 dim: 9 dim: 9 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { lr_mult: 1 } param { lr_mult: 2 }
  convolution_param { num_output: 7 kernel_size: 3 stride: 2 pad: 1 } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { pool: AVE kernel_size: 2 } }
layer { name: "fc" type: "InnerProduct" bottom: "pool" top: "fc" inner_product_param { num_output: 5 } }
layer { name: "sum" type: "Eltwise" bottom: "fc" bottom: "fc" top: "sum" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "sum" bottom: "label" top: "loss" include { phase: TRAIN } }
"""
PARAM = parse_net(NET).param


def test_the_longest_edges_have_no_waypoints_where_there_would_be_too_many() -> None:
    """A chain each of whose nodes also leads two on, and to the last."""
    count = 60
    short = [(i, i + step) for step in (1, 2) for i in range(count - step)]
    long = [(i, count - 1) for i in range(count - 3)]
    found = layout([(10.0, 10.0)] * count, [*short, *long])
    waypoints = [len(path) for path in found.paths]
    assert waypoints[: len(short)] == [0] * (count - 1) + [1] * (count - 2)
    drawn = [n for n in waypoints[len(short) :] if n]
    assert sorted(drawn) == list(range(2, 2 + len(drawn))) and 0 < len(drawn) < len(long)
    assert WAYPOINTS * count - max(drawn) - 1 < sum(waypoints) <= WAYPOINTS * count


@pytest.mark.slow
def test_a_png_of_too_many_pixels_is_refused() -> None:
    long = parse_net(f'layer {{ name: "{"n" * 10_000_000}" type: "ReLU" bottom: "x" top: "y" }}').param
    with pytest.raises(Error, match=r"the drawing has [\d,]+ pixels, and the limit is"):
        draw.draw_net(long, "TB", "png")


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]


def test_boxes_and_arrows() -> None:
    graph = draw.net_graph(PARAM, caffe.TRAIN)
    lines = [node.lines for node in graph.nodes]
    assert lines == [
        ["data", "Data", "batch 32"], ["data"], ["label"],
        ["conv", "Convolution 3x3 / 2, pad 1", "7 outputs", "relu  ReLU"], ["conv"],
        ["pool", "Pooling AVE 2x2"], ["pool"], ["fc", "InnerProduct", "5 outputs"], ["fc"], ["sum", "Eltwise"], ["sum"],
        ["loss", "SoftmaxWithLoss"], ["loss"],
    ]  # fmt: skip
    assert graph.edges[:4] == [(0, 1), (0, 2), (1, 3), (3, 4)]


def test_both_phases_meet_in_one_blob() -> None:
    graph = draw.net_graph(PARAM)
    data = [i for i, node in enumerate(graph.nodes) if node.lines == ["data"]]
    assert len(data) == 1
    assert len([edge for edge in graph.edges if edge[1] == data[0]]) == 2


def test_an_in_place_layer_after_another_reader_has_a_box_of_its_own() -> None:
    text = """input: "x" input_shape { dim: 1 }
    layer { name: "a" type: "Power" bottom: "x" top: "a" }
    layer { name: "b" type: "Power" bottom: "a" top: "b" }
    layer { name: "c" type: "ReLU" bottom: "a" top: "a" }"""
    graph = draw.net_graph(parse_net(text).param)
    assert [node.lines for node in graph.nodes][-2:] == [["c", "ReLU"], ["a"]]


def test_labels() -> None:
    conv = PARAM.layer[2]
    assert draw.get_layer_lr_mult(conv) == "lr 1, 2"
    assert draw.get_layer_label(conv, "LR", display_lrm=True) == "conv\nConvolution 3x3 / 2, pad 1\nlr 1, 2"
    kinds = {0: "MAX", 1: "AVE", 2: "STOCHASTIC", 92001: "AVE_EXC_PAD", 92002: "AVE_TF"}
    assert draw.get_pooling_types_dict() == kinds
    assert draw.get_edge_label(PARAM.layer[5]) == "5"
    assert draw.choose_color_by_layertype("SmoothL1Loss") == draw.choose_color_by_layertype("SoftmaxWithLossOHEM")


@pytest.mark.parametrize("rankdir", draw.DIRECTIONS)
def test_arrows_lead_where_rankdir_says(rankdir: str) -> None:
    graph = draw.net_graph(PARAM, caffe.TRAIN)
    picture = arrange(graph, rankdir)
    axis, sign = (0 if rankdir in ("LR", "RL") else 1), (1 if rankdir in ("LR", "TB") else -1)
    for points in picture.arrows:
        assert sign * (points[-1][axis] - points[0][axis]) > 0
    for left, top, right, bottom in picture.boxes:
        assert 0 < left < right < picture.size[0] and 0 < top < bottom < picture.size[1]


def test_svg_and_png(tmp_path: Path) -> None:
    picture = draw.draw_net(PARAM, "TB", "svg", caffe.TRAIN, shapes={"conv": (1, 7, 5, 5)}).decode()
    assert ET.fromstring(picture).findtext("{http://www.w3.org/2000/svg}title") == "a <net>"
    assert {"Convolution 3x3 / 2, pad 1", "1 x 7 x 5 x 5", "batch 32"} <= set(texts(picture))
    with Image.open(io.BytesIO(draw.draw_net(PARAM, "TB"))) as image:
        width, height = arrange(draw.net_graph(PARAM), "TB").size
        assert image.size == (round(width), round(height))
        assert len(image.getcolors(1 << 20) or []) > 5
    draw.draw_net_to_file(PARAM, tmp_path / "net.PNG", "LR")
    with Image.open(tmp_path / "net.PNG") as image:
        assert image.format == "PNG"


def test_pdf(tmp_path: Path) -> None:
    """One page of the drawing's proportions, that holds its picture."""
    draw.draw_net_to_file(PARAM, tmp_path / "net.pdf")
    data = (tmp_path / "net.pdf").read_bytes()
    assert data.startswith(b"%PDF-") and data.rstrip().endswith(b"%%EOF")
    with Image.open(io.BytesIO(draw.draw_net(PARAM, "LR"))) as image:
        width, height = image.size
    page = re.search(rb"/MediaBox \[ ?0 0 ([0-9.]+) ([0-9.]+) ?\]", data)
    picture = re.search(rb"/Width (\d+)\s*/Height (\d+)", data)
    assert page and picture and tuple(map(int, picture.groups())) == (width, height)
    assert float(page[1]) * height == pytest.approx(float(page[2]) * width, rel=1e-3)


def test_graphviz_text(tmp_path: Path) -> None:
    """Boxes, round blobs and arrows, with quotes and backslashes that Graphviz reads as they are."""
    net = parse_net(r"""name: "a \"net\""
    layer { name: "d\\N" type: "Input" top: "x" }
    layer { name: "r&lt;" type: "ReLU" bottom: "x" top: "y" }
    layer { name: "t" type: "TanH" bottom: "y" top: "y" }""").param
    draw.draw_net_to_file(net, tmp_path / "net.dot", "LR")
    lines = (tmp_path / "net.dot").read_text().splitlines()
    assert lines[:2] == [r'digraph "a \"net\"" {', "  rankdir=LR;"] and lines[-1] == "}"
    assert [line.strip() for line in lines[4:-1]] == [
        r'n0 [label="d\\N\nInput", fillcolor="#bfe3b4"];',
        'n1 [label="x", fillcolor="#eceff2", style="filled,rounded"];',
        r'n2 [label="r&amp;lt;\nReLU\nt  TanH", fillcolor="#bfd6f2"];',
        'n3 [label="y", fillcolor="#eceff2", style="filled,rounded"];',
        "n0 -> n1;", "n1 -> n2;", "n2 -> n3;",
    ]  # fmt: skip
    draw.draw_net_to_file(net, tmp_path / "net.gv", "LR")
    assert (tmp_path / "net.gv").read_bytes() == (tmp_path / "net.dot").read_bytes()


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(Error, match="rankdir must be one of TB, BT, LR, RL, got 'XY'"):
        draw.draw_net(PARAM, "XY")
    with pytest.raises(Error, match=r"drawn as \.svg, \.png, \.pdf or \.dot, not as \.jpg"):
        draw.draw_net_to_file(PARAM, tmp_path / "net.jpg")
    with pytest.raises(Error, match="minicaffe makes no pydot graph"):
        draw.get_pydot_graph(PARAM, "LR")


def test_a_net_of_nothing() -> None:
    assert texts(draw.draw_net(caffe.proto.caffe_pb2.NetParameter(), "LR", "svg").decode()) == []
    assert draw.draw_net(caffe.proto.caffe_pb2.NetParameter(), "LR")[:4] == b"\x89PNG"


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(NET)
    for name, options in (("a.svg", ["--shapes"]), ("b.png", ["--rankdir", "LR", "--phase", "TRAIN", "--display-lrm"])):
        result = CliRunner().invoke(main, ["draw", str(tmp_path / "net.prototxt"), "-o", str(tmp_path / name), *options])
        assert result.exit_code == 0, result.output
        assert (tmp_path / name).stat().st_size > 1000
    assert "1 x 7 x 5 x 5" in texts((tmp_path / "a.svg").read_text())


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 6)), max_size=20))
def test_layout_keeps_ranks_and_gaps(steps: list[tuple[int, int]]) -> None:
    edges = [(start, start + step) for start, step in steps]
    nodes = 16
    ranks = ranked(nodes, edges)
    assert all(ranks[end] > ranks[start] for start, end in edges)
    sizes = [(10.0 + node, 5.0 + node % 3) for node in range(nodes)]
    found = layout(sizes, edges)
    by_rank: dict[float, list[tuple[float, float]]] = {}
    for (along, across), (width, _) in zip(found.centres, sizes, strict=True):
        by_rank.setdefault(across, []).append((along - width / 2, along + width / 2))
    for spans in by_rank.values():
        spans.sort()
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(spans))
    assert all(len(path) == ranks[end] - ranks[start] - 1 for path, (start, end) in zip(found.paths, edges, strict=True))


@pytest.mark.parametrize(
    "fields, text",
    [
        ("kernel_size: 3", "3x3"),
        ("kernel_h: 1 kernel_w: 7 pad_h: 0 pad_w: 3", "1x7, pad 0x3"),
        ("kernel_size: 3 stride_h: 2 stride_w: 1", "3x3 / 2x1"),
        ("kernel_size: 2 stride: 2 pad: 1", "2x2 / 2, pad 1"),
    ],
)
@pytest.mark.parametrize("kind", ["Convolution", "Pooling"])
def test_the_window_of_a_layer(kind: str, fields: str, text: str) -> None:
    block = f"{kind.lower()}_param {{ {fields} }}"
    layer = parse_net(f'layer {{ name: "a" type: "{kind}" bottom: "x" top: "a" {block} }}').param.layer[0]
    assert draw.layer_details(layer) == ("MAX " if kind == "Pooling" else "") + text
