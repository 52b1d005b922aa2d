"""trace-diff: two saved pages, the first step that differs, and pages that are none or broken."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from minicaffe import TEST, Error, Net, Tracer, limits
from minicaffe.cli import main
from minicaffe.formats.prototxt import parse_net
from minicaffe.tracing.trace_diff import read_trace, trace_diff, write_diff_page
from minicaffe.tracing.tracer import TILE_BYTES

NET = """name: "small"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 60 dim: 64 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { pool: AVE kernel_size: 16 stride: 16 } }
"""


def traced(path: Path, text: str = NET, change: Callable[[Net], None] = lambda net: None, **options: Any) -> Path:
    net = Net(parse_net(text), TEST)
    generator = np.random.default_rng(0)
    net.blobs["data"].data[...] = generator.standard_normal(net.blobs["data"].shape)
    for layer in net.layers:
        for blob in layer.blobs:
            blob.data[...] = generator.standard_normal(blob.shape)
    change(net)
    with Tracer(net, path, tile_bytes=TILE_BYTES, **options):
        net.forward()
    return path


def one_more(net: Net) -> None:
    net.params["conv"][1].data[2] += 1


def test_the_first_step_that_differs_and_by_how_much(tmp_path: Path) -> None:
    a, b = read_trace(traced(tmp_path / "a.html")), read_trace(traced(tmp_path / "b.html", change=one_more))
    diff = trace_diff(a, b)
    assert not diff.same
    assert diff.first
    assert (diff.first.kind, diff.first.layer) == ("forward", "conv")
    maps = diff.first.a.maps, diff.first.b.maps
    assert maps[0] and maps[1]
    apart = maps[1].pixels - maps[0].pixels
    assert np.abs(apart[0]).max() <= maps[0].step / 2 + maps[1].step / 2
    assert np.abs(apart[2] - 1).max() <= maps[0].step / 2 + maps[1].step / 2
    pool = diff.found[-1]  # small: compared by its values
    assert (pool.layer, pool.what) == ("pool", "the values")
    assert pool.a.values is not None and pool.b.values is not None
    assert pool.largest == pytest.approx(np.abs(pool.a.values - pool.b.values).max())
    assert trace_diff(a, a).same


def test_a_change_that_only_the_maps_show(tmp_path: Path) -> None:
    def swap(net: Net) -> None:
        net.blobs["data"].data[...] = net.blobs["data"].data[:, ::-1].copy()

    a, b = read_trace(traced(tmp_path / "a.html")), read_trace(traced(tmp_path / "b.html", change=swap))
    first = trace_diff(a, b).first
    assert first
    assert (first.layer, first.what) == ("data", "the maps")


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    def spoil(net: Net) -> None:
        net.params["conv"][1].data[2] = np.nan

    a, b = read_trace(traced(tmp_path / "a.html")), read_trace(traced(tmp_path / "b.html", change=spoil))
    assert "first difference: forward of conv: the numbers of NaN and infinities of conv differ" in str(trace_diff(a, b))
    assert trace_diff(b, b).same


def test_another_net_and_another_image(tmp_path: Path) -> None:
    a = read_trace(traced(tmp_path / "a.html"))
    other = NET.replace('"pool" type', '"mean" type')
    b = read_trace(traced(tmp_path / "b.html", other, image=np.zeros((60, 64, 3), np.uint8)))
    diff = trace_diff(a, b)
    assert (diff.only_a, diff.only_b, diff.first, diff.same) == (["pool"], ["mean"], None, False)
    assert str(diff).splitlines()[:3] == ["the images differ", "only in A: pool", "only in B: mean"]
    wholly = read_trace(traced(tmp_path / "c.html", re.sub(r'name: "(\w+)" type', r'name: "my_\1" type', NET)))
    assert {"my_conv", "my_pool"} < set(wholly.layers)
    with pytest.raises(Error, match="no step in common"):
        trace_diff(a, wholly)


def test_other_shapes(tmp_path: Path) -> None:
    a = read_trace(traced(tmp_path / "a.html"))
    b = read_trace(traced(tmp_path / "b.html", NET.replace("num_output: 4", "num_output: 5")))
    assert "the shapes, (1, 4, 58, 62) and (1, 5, 58, 62), of conv differ" in str(trace_diff(a, b))


def test_the_command(tmp_path: Path) -> None:
    a, b, out = traced(tmp_path / "a.html"), traced(tmp_path / "b.html", change=one_more), tmp_path / "d.html"
    done = CliRunner().invoke(main, ["trace-diff", str(a), str(b), "-o", str(out)])
    assert done.exit_code == 1, done.output
    assert "first difference: forward of conv: the statistics of conv differ by" in done.output
    page = out.read_text()
    assert "@@" not in page
    assert "<script" not in page
    assert page.count("<figure><img") == 15  # A, B and A - B of four blobs and of the filters
    assert CliRunner().invoke(main, ["trace-diff", str(a), str(a)]).exit_code == 0
    refused = CliRunner().invoke(main, ["trace-diff", str(a), str(b), "-o", str(a)])
    assert refused.exit_code
    assert read_trace(a)


def saved_net(folder: Path, name: str, text: str = NET, **biases: float) -> Path:
    """A .caffemodel of the net with ones as weights, and a prototxt beside it."""
    net = Net(parse_net(text), TEST)
    for blob in net.params["conv"]:
        blob.data[...] = 1
    net.params["conv"][1].data[2] += biases.get("bias", 0)
    net.params["conv"][0].data[3, 1, 0, 2] += biases.get("weight", 0)
    (folder / f"{name}.prototxt").write_text(text)
    net.save(folder / f"{name}.caffemodel")
    return folder / f"{name}.prototxt"


def test_two_nets(tmp_path: Path) -> None:
    """They see the same inputs; the weights are compared exactly, what a page's maps cannot show too."""
    saved_net(tmp_path, "a")
    net, out = saved_net(tmp_path, "b", weight=-0.5, bias=0.25), tmp_path / "d.html"
    weights = ["--weights-a", str(tmp_path / "a.caffemodel"), "--weights-b", str(tmp_path / "b.caffemodel")]
    done = CliRunner().invoke(main, ["trace-diff", str(net), str(net), *weights, "-o", str(out)])
    assert done.exit_code == 1, done.output
    assert done.stdout.splitlines() == [
        "2 of 2 blobs of weights differ",
        "the most, relative to the largest weight: conv.weight 0.5, conv.bias 0.2",
        "first weights that differ: weights of conv: the values of weight differ by 0.5; A's largest absolute value is 1",
        "4 steps compared",
        next(line for line in done.stdout.splitlines() if line.startswith("first difference: forward of conv: the statistics")),
        f"written: {out}",
    ]
    page = out.read_text()
    assert "<h2>Weights</h2><details class=differs><summary>weights of conv: the values of weight differ by 0.5" in page
    same = CliRunner().invoke(main, ["trace-diff", str(net), str(net), *weights[:2], "--weights-b", weights[1]])
    assert (same.exit_code, same.stdout.splitlines()[0]) == (0, "2 blobs of weights compared: no difference")


def test_a_page_and_a_net(tmp_path: Path) -> None:
    net, page = saved_net(tmp_path, "a"), tmp_path / "a.html"
    given = [str(net), str(tmp_path / "a.caffemodel")]
    assert CliRunner().invoke(main, ["trace", *given, "--out", str(page)]).exit_code == 0
    done = CliRunner().invoke(main, ["trace-diff", str(page), given[0], "--weights-b", given[1]])
    assert done.exit_code == 0, done.output
    assert "2 blobs of weights compared: no difference" in done.stdout
    refused = CliRunner().invoke(main, ["trace-diff", str(page), str(page), "--weights", given[1]])
    assert refused.exit_code == 2
    assert "both A and B are pages" in refused.output


def test_weights_of_another_shape(tmp_path: Path) -> None:
    a = read_trace(traced(tmp_path / "a.html"))
    b = read_trace(traced(tmp_path / "b.html", NET.replace("kernel_size: 3 }", "kernel_size: 3 pad: 1 }"), image=None))
    assert trace_diff(a, b).weight_notes() == ["2 blobs of weights compared: no difference"]
    c = read_trace(traced(tmp_path / "c.html", NET.replace("num_output: 4", "num_output: 5")))
    assert "weights of conv: the shapes, (4, 3, 3, 3) and (5, 3, 3, 3), of weight differ" in str(trace_diff(a, c))


def test_maps_of_other_sizes_are_not_compared(tmp_path: Path) -> None:
    a = read_trace(traced(tmp_path / "a.html"))
    net = Net(parse_net(NET), TEST)
    with Tracer(net, tmp_path / "b.html", tile_bytes=4096):
        net.forward()
    write_diff_page(trace_diff(a, read_trace(tmp_path / "b.html")), tmp_path / "d.html")
    assert "The pages hold maps of other sizes" in (tmp_path / "d.html").read_text()


def test_a_name_cannot_write_into_the_page(tmp_path: Path) -> None:
    a = read_trace(traced(tmp_path / "a.html", NET.replace('name: "conv" t', 'name: "<img src=x>@@page.css@@" t')))
    write_diff_page(trace_diff(a, a), tmp_path / "d.html")
    page = (tmp_path / "d.html").read_text()
    assert "<img src=x" not in page
    assert "&lt;img src=x&gt;@@page.css@@" in page


def changed(page: Path, change: Callable[[Any], Any]) -> None:
    """Rewrite the page's JSON."""
    tag = '<script type="application/json" id="trace">'
    before, rest = page.read_text().split(tag)
    data, _, after = rest.partition("</script>")
    page.write_text(f"{before}{tag}{json.dumps(change(json.loads(data)))}</script>{after}")


def conv(document: Any) -> Any:
    step = next(s for s in document["steps"] if s["kind"] == "forward" and s["layer"] == 1)
    return step["blobs"][0]


BROKEN: dict[str, Callable[[Any], Any]] = {
    "a list": lambda document: [],
    "no steps": lambda document: {**document, "steps": 3},
    "layer -9": lambda document: {**document, "steps": [{"kind": "forward", "layer": -9, "blobs": []}]},
    "outside": lambda document: conv(document)["tiles"]["pixels"].update(at=10**9) or document,
    "negative": lambda document: conv(document)["tiles"]["pixels"].update(shape=[-1, -1, 4]) or document,
    "huge": lambda document: conv(document)["tiles"]["pixels"].update(shape=[2**40, 2**40, 2**40]) or document,
    "shared": lambda document: {**document, "steps": document["steps"] * 4},
    "a flat map": lambda document: conv(document)["tiles"]["pixels"].update(shape=[4]) or document,
    "dtype": lambda document: conv(document)["tiles"]["pixels"].update(dtype="O") or document,
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_documents(kind: str, tmp_path: Path) -> None:
    page = traced(tmp_path / "a.html")
    changed(page, BROKEN[kind])
    with pytest.raises(Error, match=r"a\.html: the trace in this page is broken"):
        read_trace(page)


def test_what_is_no_page(tmp_path: Path) -> None:
    page = traced(tmp_path / "a.html")
    text = page.read_text()
    tag = 'id="arrays">'
    start = text.index(tag) + len(tag)
    page.write_text(text[:start] + text[start : start + 400] + "</script>")
    with pytest.raises(Error, match="broken"):
        read_trace(page)
    bomb = base64.b64encode(gzip.compress(bytes(2**22))).decode()
    page.write_text(f"{text[:start]}{bomb}</script>")
    with limits.raised({"lists": 2**21}), pytest.raises(Error, match="limit"):
        read_trace(page)
    page.write_text(text.replace('{"format":1', '{"format":99'))
    with pytest.raises(Error, match="format 99"):
        read_trace(page)
    page.write_text("<html></html>")
    with pytest.raises(Error, match="not a page of minicaffe trace"):
        read_trace(page)
    nested = text.index('id="trace">') + len('id="trace">')
    page.write_text(text[:nested] + "[" * 100_000 + text[text.index("</script>", nested) :])
    with pytest.raises(Error, match="broken"):
        read_trace(page)
