"""Nets of two layers of one name, each with weights of its own: tools take both, or refuse them and name both places."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from minicaffe import TEST, Net
from minicaffe.detection.random_weights import draw_weights
from minicaffe.errors import LayerError
from minicaffe.formats.prototxt import parse_net
from minicaffe.parameters import put_weights, weights_of
from minicaffe.porting.comparison import compare
from minicaffe.porting.cut import cut
from minicaffe.porting.merge_bn import merge_net

HEAD = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 } } }\n'
IP = """layer {{ name: "{}" type: "InnerProduct" bottom: "{}" top: "{}"
  inner_product_param {{ num_output: 3 weight_filler {{ type: "gaussian" std: 1 }} bias_filler {{ type: "gaussian" }} }} }}
"""
THRICE = HEAD + IP.format("ip", "data", "a") + IP.format("ip", "a", "b") + IP.format("ip", "b", "c")
SHARED = THRICE.replace("inner_product_param", 'param { name: "w" } param { name: "b" } inner_product_param')


def net_of(text: str) -> Net:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = Net(parse_net(text, "made.prototxt"), TEST)
    net.blobs["data"].data[...] = np.arange(6).reshape(2, 3) / 6
    return net


def test_weights_of_all_layers_of_one_name(tmp_path: Path) -> None:
    net, other = net_of(THRICE), net_of(THRICE)
    assert list(weights_of(net)) == ["ip", "ip#2", "ip#3"]
    put_weights(other, weights_of(net))
    np.testing.assert_array_equal(other.forward()["c"], net.forward()["c"])
    assert list(weights_of(net_of(SHARED))) == ["ip"]
    assert list(weights_of(net_of(THRICE + IP.format("ip#2", "c", "d")))) == ["ip", "ip#2", "ip#3", "ip#2#2"]


def test_compare_copies_the_weights_of_all(tmp_path: Path) -> None:
    (tmp_path / "b.prototxt").write_text(THRICE)
    net = net_of(THRICE)
    for i, layer in enumerate(net.layers):
        if layer.blobs:
            layer.blobs[0].data[...] = i
    with pytest.warns(UserWarning, match="another layer with weights has this name"):
        result = compare(net, tmp_path / "b.prototxt")
    assert result.same and "B has A's weights in 3 layers" in result.notes


def test_random_weights_reach_all() -> None:
    text = THRICE.replace('weight_filler { type: "gaussian" std: 1 }', "")
    net = net_of(text)
    note = draw_weights(net, net.params, 0, lambda: net_of(text))
    assert note == "3 layers have random weights (seed 0)"
    assert all(layer.blobs[0].data.all() for layer in net.layers if layer.blobs)


def test_a_part_has_the_weights_of_its_own_layer() -> None:
    net = net_of(THRICE)
    whole = {name: array.copy() for name, array in net.forward(blobs=["a", "b"]).items()}
    for start, end in (("data", "a"), ("a", "b"), ("b", "c")):
        part = cut(net, [f"blob:{start}"], [f"blob:{end}"]).net()
        part.blobs[start].data[...] = net.blobs[start].data
        np.testing.assert_array_equal(part.forward()[end], whole[end])
    named = r'"ip": another layer with weights has this name \(made.prototxt:2\), and cutting needs .* \(made.prototxt:4\)'
    with pytest.raises(LayerError, match=named):
        cut(net, [], ["blob:c"])
    cut(net_of(SHARED), [], ["blob:c"])


def test_merge_bn_refuses_them() -> None:
    scale = 'layer { name: "s" type: "Scale" bottom: "c" top: "d" }'
    with pytest.raises(LayerError, match=r"and folding needs weights by it; rename one of them \(made.prototxt:4\)"):
        merge_net(net_of(THRICE + scale))
    assert merge_net(net_of(HEAD + IP.format("ip", "data", "c") + scale))[1].folded == {"ip": ["s"]}


def test_the_onnx_export_has_the_weights_of_all(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    from minicaffe.porting.onnx import compare_with_net, export_onnx

    net = net_of(THRICE)
    export_onnx(net, tmp_path / "m.onnx")
    (found,) = compare_with_net(net, tmp_path / "m.onnx")
    assert found.relative < 1e-6


def test_both_ways_to_pytorch_have_the_weights_of_all(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch (the extra torch) is not installed")
    from minicaffe.porting.torch_source import compare_source, write_source
    from minicaffe.torch import to_torch

    net, other = net_of(THRICE), net_of(THRICE)
    found = compare_source(net, tmp_path / "m.py", write_source(net, tmp_path / "m.py"))
    assert {"c", "d ip.weight", "d ip_2.weight", "d ip_3.weight"} <= {one.name for one in found}
    assert all(one.relative < 1e-6 for one in found)
    module = to_torch(net)
    expected = net.forward()["c"]
    np.testing.assert_allclose(module(torch.from_numpy(net.blobs["data"].data))["c"].detach(), expected, rtol=1e-5)
    module.copy_to(other)
    np.testing.assert_array_equal(other.forward()["c"], expected)
