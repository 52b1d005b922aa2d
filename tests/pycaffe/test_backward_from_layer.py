"""backward_from_layer and deconv_from_layer: the gradient against central differences, ReLU's rules against plain loops, and
what a pass for pictures leaves as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from minicaffe import TEST, Net, kernels, set_random_seed
from minicaffe.errors import Error
from minicaffe.formats.prototxt import parse_net

Floats = NDArray[np.floating[Any]]

FILLERS = 'weight_filler { type: "msra" } bias_filler { type: "uniform" min: -0.5 max: 0.5 }'
BRANCHES = """input: "data" input_shape { dim: 2 dim: 3 dim: 7 dim: 9 }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 4 kernel_size: 3 FILLERS } }
layer { name: "bn1" type: "BatchNorm" bottom: "conv1" top: "conv1" batch_norm_param { use_global_stats: true } }
layer { name: "scale1" type: "Scale" bottom: "conv1" top: "conv1" scale_param { bias_term: true } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "beside" type: "Convolution" bottom: "conv1" top: "beside"
  convolution_param { num_output: 5 kernel_size: 1 FILLERS } }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "conv2" type: "Convolution" bottom: "pool1" top: "conv2"
  convolution_param { num_output: 6 kernel_size: 2 FILLERS } }
layer { name: "relu2" type: "ReLU" bottom: "conv2" top: "conv2" relu_param { negative_slope: 0.25 } }
layer { name: "ip" type: "InnerProduct" bottom: "conv2" top: "ip"
  inner_product_param { num_output: 8 FILLERS } }
layer { name: "both" type: "InnerProduct" bottom: "beside" top: "both"
  inner_product_param { num_output: 8 FILLERS } }
layer { name: "sum" type: "Eltwise" bottom: "ip" bottom: "both" top: "sum" }
""".replace("FILLERS", FILLERS)


def made(dtype: Any = np.float32, text: str = BRANCHES) -> Net:
    """Return a net that has run on random numbers."""
    set_random_seed(3)
    net = Net(parse_net(text), TEST, dtype=dtype)
    if "bn1" in net.params:
        for blob, value in zip(net.params["bn1"], ([0.3, -0.1, 0, 0.2], [1.5, 0.7, 1, 2], [1])):
            blob.data[...] = value
    net.forward(data=np.random.default_rng(1).standard_normal(net.blobs["data"].shape))
    return net


@pytest.mark.parametrize("layer", ["conv1", "relu1", "pool1", "conv2", "relu2", "ip", "both", "sum"])
def test_the_gradient_is_that_of_central_differences(layer: str) -> None:
    net = made(np.float64)
    top = net.top_names[layer][0]
    diff = np.random.default_rng(2).standard_normal(net.blobs[top].shape)
    for blob in net.blobs.values():
        blob.diff[...] = 7  # of an earlier pass
    found = net.backward_from_layer(layer, diff)["data"].copy()
    x, step, wanted = net.blobs["data"].data, 1e-6, np.zeros_like(found)
    for at in np.ndindex(x.shape):
        ends = []
        for way in (1, -1):
            x[at] += way * step
            net.forward(end=layer)
            ends.append((diff * net.blobs[top].data).sum())
            x[at] -= way * step
        wanted[at] = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)
    assert np.abs(found).max() > 0.1


CHAIN = """input: "data" input_shape { dim: 1 dim: 2 dim: 5 dim: 6 }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 3 kernel_h: 2 kernel_w: 3 bias_term: false weight_filler { type: "msra" } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" relu_param { negative_slope: SLOPE } }
layer { name: "conv2" type: "Convolution" bottom: "conv1" top: "conv2"
  convolution_param { num_output: 4 kernel_h: 3 kernel_w: 2 bias_term: false weight_filler { type: "msra" } } }
"""


def spread(dy: Floats, weight: Floats) -> Floats:
    """Return the gradient in x (C, H, W) of a convolution without padding: plain loops over dy (M, H', W')."""
    (filters, rows, columns), (_, channels, height, width) = dy.shape, weight.shape
    dx = np.zeros((channels, rows + height - 1, columns + width - 1))
    for m in range(filters):
        for i in range(rows):
            for j in range(columns):
                dx[:, i : i + height, j : j + width] += dy[m, i, j] * weight[m]
    return dx


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("slope", [0, 0.25, -0.5])
@pytest.mark.parametrize("how", ["numpy", "auto"])
def test_the_rules_are_those_of_the_papers(slope: float, how: str) -> None:
    with kernels.using(how):
        net = made(text=CHAIN.replace("SLOPE", str(slope)))
        weight1, weight2 = (net.params[name][0].data.astype(np.float64) for name in ("conv1", "conv2"))
        net.forward(end="conv1")
        x = net.blobs["conv1"].data[0].copy()
        net.forward()
        assert (x > 0).any() and (x < 0).any()
        seed = np.random.default_rng(5).standard_normal(net.blobs["conv2"].shape)
        dy = spread(seed[0], weight2)
        gradient = np.where(x > 0, dy, slope * dy)
        wanted = {
            "gradient": gradient,
            "Zeiler & Fergus": np.where(dy > 0, dy, slope * dy),
            "Guided Backprop": np.where(dy > 0, gradient, 0),
        }
        found = {kind: net.deconv_from_layer("conv2", seed, deconv_type=kind)["data"].copy() for kind in list(wanted)[1:]}
        found["gradient"] = net.backward_from_layer("conv2", seed)["data"].copy()  # last: the rule has gone
        for kind, one in wanted.items():
            np.testing.assert_allclose(found[kind][0], spread(one, weight1), rtol=1e-4, atol=1e-4, err_msg=kind)
        assert not np.allclose(found["Zeiler & Fergus"], found["Guided Backprop"])
    assert np.array_equal(net.deconv_from_layer("conv2", seed)["data"], found["Zeiler & Fergus"])  # the default


def test_a_pass_leaves_weights_settings_and_losses_as_they_were() -> None:
    text = BRANCHES + 'layer { name: "loss" type: "EuclideanLoss" bottom: "sum" bottom: "ip2" top: "loss" loss_weight: 3 }\n'
    text = text.replace('name: "ip" type', 'name: "ip2" type: "InnerProduct" bottom: "pool1" top: "ip2" inner_product_param '
                        '{ num_output: 8 } }\nlayer { name: "ip" type')  # fmt: skip
    net = made(text=text)
    net.backward()
    kept = [blob.diff.copy() for blob in net.learnable_params]
    settings = [(node.needs_backward, list(node.bottom_needs), list(node.layer.param_propagate_down)) for node in net.nodes]
    assert any(diff.any() for diff in kept)
    net.deconv_from_layer("conv2", np.ones(net.blobs["conv2"].shape), zero_higher=True)
    net.backward_from_layer("loss", 2.0)
    with pytest.raises(Error):
        net.backward_from_layer("conv2", np.ones((1, 6, 3, 3)))
    assert all(np.array_equal(blob.diff, diff) for blob, diff in zip(net.learnable_params, kept))
    assert settings == [
        (node.needs_backward, list(node.bottom_needs), list(node.layer.param_propagate_down)) for node in net.nodes
    ]
    net.clear_param_diffs()
    net.backward()
    assert net.blobs["loss"].diff == 3
    assert all(np.array_equal(blob.diff, diff) for blob, diff in zip(net.learnable_params, kept))


def test_the_returned_diffs_and_zero_higher() -> None:
    net = made()
    for blob in net.blobs.values():
        blob.diff[...] = 7
    out = net.backward_from_layer("conv2", np.ones(net.blobs["conv2"].shape), ["pool1"])
    assert list(out) == ["data", "pool1"]
    assert np.shares_memory(out["pool1"], net.blobs["pool1"].diff)
    assert (net.blobs["sum"].diff == 7).all()
    assert not net.backward_from_layer("ip", np.ones((2, 8)), ["beside"])["beside"].any()  # ip does not depend on it
    net.backward_from_layer("conv2", np.ones(net.blobs["conv2"].shape), zero_higher=True)
    assert not net.blobs["sum"].diff.any() and net.blobs["conv2"].diff.all()


def test_errors() -> None:
    net = made()
    ones = np.ones(net.blobs["conv2"].shape)
    with pytest.raises(Error, match=r'^the net has no layer "conv3"; did you mean "conv'):
        net.backward_from_layer("conv3", ones)
    with pytest.raises(Error, match=r'^"conv2" has shape \(2, 6, 2, 3\), but the array given has \(2, 5, 2, 3\)$'):
        net.backward_from_layer("conv2", ones[:, :5])
    with pytest.raises(Error, match=r"^deconv_type is 'Zeiler & Fergus' or 'Guided Backprop', got 'guided'$"):
        net.deconv_from_layer("conv2", ones, deconv_type="guided")
    with pytest.raises(KeyError, match='no blob "pool3"'):
        net.backward_from_layer("conv2", ones, ["pool3"])
    with pytest.raises(Error, match='keep="outputs" has freed'):
        Net(parse_net(BRANCHES), TEST, keep="outputs").backward_from_layer("conv2", ones)
    text = 'input: "x" input_shape { dim: 2 } layer { name: "end" type: "Silence" bottom: "x" }'
    with pytest.raises(Error, match='Silence layer "end": has no top to run backward from: name another layer'):
        Net(parse_net(text), TEST).backward_from_layer("end", 1)
