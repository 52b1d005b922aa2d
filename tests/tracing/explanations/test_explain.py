"""explain on nets worked by hand: the typed numbers, the text, in-place chains, gradients of a loss, and every error."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from explained import net_of
from google.protobuf import text_format

import minicaffe
from minicaffe import TEST, TRAIN, Net
from minicaffe.errors import Error
from minicaffe.proto import caffe_pb2
from minicaffe.tracing.explanations import (
    GradientExplanation,
    MaxBinExplanation,
    MeanBinExplanation,
    SamplesExplanation,
    SumExplanation,
)

pytestmark = pytest.mark.usefixtures("device")

MAP = np.arange(60.0).reshape(1, 2, 5, 6)
ROIS = np.array([[0, 2, 1, 9, 8.6], [0, 0, 0, 3, 3]])

CHAIN = """
input: "data" input_shape { dim: 2 dim: 3 dim: 4 dim: 4 }  input: "label" input_shape { dim: 2 }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 3 kernel_size: 2 weight_filler { type: "gaussian" std: 1 } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" relu_param { negative_slope: 0.1 } }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { filler { value: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 3
  weight_filler { type: "gaussian" std: 1 } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" loss_weight: 0.5 }
"""


def chain(phase: int = TEST) -> Net:
    minicaffe.set_random_seed(1)
    net = Net(text_format.Parse(CHAIN, caffe_pb2.NetParameter()), phase)
    net.blobs["data"].data[...] = np.random.default_rng(2).standard_normal((2, 3, 4, 4))
    net.blobs["label"].data[...] = [1, 2]
    return net


def pooled(kind: str, block: str) -> Net:
    return net_of(f'type: "{kind}" {block}', MAP, ROIS)


def test_roi_pooling_by_hand() -> None:
    net = pooled("ROIPooling", "roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 }")
    found = minicaffe.explain(net, "it", roi=0, channel=1, bin=(1, 2))
    assert isinstance(found, MaxBinExplanation)
    assert (found.roi.number, found.roi.x2, found.channel, found.map) == (0, 9, 1, "in0")
    x, y = found.columns, found.rows
    assert x.halfway == (1, 4.5) and x.corners == (1, 5)  # 4.5 is rounded away from 0
    assert (x.extent, x.edges, x.raw, x.clipped) == (5, (np.float32(5 / 3) * 2, 5), (4, 6), (4, 6))
    assert y.halfway == (0.5, np.float32(4.3)) and y.corners == (1, 4)
    assert (y.extent, y.length, y.raw, y.clipped) == (4, 2, (3, 5), (3, 5))
    assert np.array_equal(found.cells, [[52, 53], [58, 59]])
    assert (found.value, found.computed, found.argmax) == (59, 59, (4, 5))
    text = str(found)
    for part in ("0.5 to 4.3", "1 to 5", "5 - 1 + 1 = 5", "5 / 3 = 1.6666666", "the bin reads 2 x 2 = 4 cells", "*59*",
                 "at h 4, w 5 (argmax 4 * 6 + 5 = 29)", "equal, bit for bit"):  # fmt: skip
        assert part in text


def test_psroi_align_by_hand() -> None:
    x = np.arange(4 * 16.0).reshape(1, 4, 4, 4)
    net = net_of(
        'type: "PSROIAlign" psroi_align_param { group_size: 2 output_dim: 1 spatial_scale: 0.5 sample_num: 1 }',
        x,
        np.array([[0, 0, 1, 3, 4.0]]),
    )
    found = minicaffe.explain(net, "it", roi=0, channel=0, bin=(1, 0))
    assert isinstance(found, SamplesExplanation)
    assert found.score_map is not None and found.score_map.channel == found.channel == 2
    assert found.columns.halfway == (0, 4) and found.columns.corners == (0, 2)
    assert found.rows.edges == (1.5, 2.5) and found.rows.clipped == (1.5, 2.5)
    (sample,) = found.samples
    assert (sample.h, sample.w) == (2, 0.5)
    assert [(n.row, n.column, n.weight) for n in sample.neighbours] == [(2, 0, 0.5), (2, 1, 0.5), (3, 0, 0), (3, 1, 0)]
    assert found.value == sample.value == 32 + 8 + 0.5
    assert "channel 2 = (0 * 2 + 1) * 2 + 0" in str(found)


def test_psroi_pooling_by_hand() -> None:
    net = pooled("PSROIPooling", "psroi_pooling_param { group_size: 1 output_dim: 2 spatial_scale: 0.5 }")
    found = minicaffe.explain(net, "it", roi=1, channel=1, bin=(0, 0))
    assert isinstance(found, MeanBinExplanation)
    assert found.rows.halfway == (0, 4) and found.rows.clipped == (0, 2)
    assert found.value == np.mean([30, 31, 36, 37])
    assert "/ 4 cells = 33.5" in str(found)


def test_roi_align_of_both_kinds() -> None:
    best = minicaffe.explain(
        pooled("ROIAlign", "roi_align_param { pooled_h: 1 pooled_w: 1 spatial_scale: 0.5 }"), "it", roi=1, channel=0, bin=(0, 0)
    )
    assert isinstance(best, SamplesExplanation)
    # from 0 to 1.5 + 1 = 2.5, ends left out: samples at 0, 1 and 2; a whole place's cell is added four times
    assert [(s.h, s.w) for s in best.samples] == [(h, w) for h in range(3) for w in range(3)]
    assert best.greatest == 8 and best.value == 4 * 14 and best.divisor == 0
    mean = minicaffe.explain(
        pooled("ROIAlign", "roi_align_param { pooled_h: 1 pooled_w: 1 spatial_scale: 0.5 pool: AVE aligned: true }"),
        "it",
        (0, 0, 0, 0),
    )
    assert isinstance(mean, SamplesExplanation)
    assert mean.columns.corners == (0.5, 4) and mean.columns.extent == 3.5
    assert len(mean.samples) == 16 and mean.divisor == 16
    assert "minus 0.5 (aligned)" in str(mean) and "n = ceil(3.5) = 4" in str(mean)


def test_an_empty_bin_and_long_tables() -> None:
    x, rois = np.zeros((1, 1, 40, 30)), np.array([[0, 100, 100, 120, 120], [0, 0, 0, 29, 39.0]])
    net = net_of('type: "ROIPooling" roi_pooling_param { pooled_h: 1 pooled_w: 1 }', x, rois)
    empty = str(minicaffe.explain(net, "it", (0, 0, 0, 0)))
    assert "0 x 0 = 0 cells" in empty and "it is empty, and its value is 0" in empty and "no gradient" in empty
    whole = minicaffe.explain(net, "it", (1, 0, 0, 0))
    assert "1008 more cells not shown" in str(whole) and "the first of 1200 equal ones" in str(whole)
    assert "h=39" not in str(whole) and "h=39" in whole.text(rows=40)
    align = net_of('type: "ROIAlign" roi_align_param { pooled_h: 1 pooled_w: 1 pool: AVE }', x, rois)
    assert "1115 more samples not shown" in str(minicaffe.explain(align, "it", (1, 0, 0, 0)))


def test_where_a_gradient_comes_from() -> None:
    net = pooled("ROIPooling", "roi_pooling_param { pooled_h: 1 pooled_w: 1 spatial_scale: 0.5 }")
    found = minicaffe.explain(net, "it", backward=True, channel=1, cell=(4, 5))
    assert isinstance(found, GradientExplanation)
    assert [(t.blob, t.at, t.columns["dy"], t.product) for t in found.terms] == [("out0", (0, 1, 0, 0), 1, 1)]
    assert "2 of the 2 rois are in image 0; 1 bin of 1 roi depends on the cell" in str(found)
    assert "every dy is 1; no loss of the net depends on this layer" in str(found)
    nothing = minicaffe.explain(net, "it", backward=True, channel=1, cell=(0, 0))
    assert nothing.value == 0 and "no element of a top depends on it: 0" in str(nothing)
    given = minicaffe.explain(net, "it", backward=True, channel=1, cell=(4, 5), dy=np.full((2, 2, 1, 1), 2.5))
    assert given.value == 2.5 and "dy as given" in str(given)


@pytest.mark.parametrize("layer", ["conv", "relu", "scale", "ip", "loss"])
@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_a_chain_in_place_and_its_loss(layer: str, phase: int) -> None:
    net = chain(phase)
    shape = {"ip": (2, 3), "loss": ()}.get(layer, (2, 3, 3, 3))
    for at in [tuple(n - 1 for n in shape), tuple(0 for _ in shape)]:
        found = minicaffe.explain(net, layer, at)
        assert found.agrees
    bottom = {"conv": "data", "loss": "ip"}.get(layer, "conv")
    at = tuple(n - 1 for n in net.blobs[bottom].shape)
    found = minicaffe.explain(net, layer, at, backward=True)
    assert found.agrees and found.notes[-1] == "dy is the gradient of the loss (loss)"
    if bottom == "data":
        net.force_backward()
        net.forward_backward()
        assert found.value == net.blobs["data"].diff[at] != 0


def test_in_place_the_bottom_is_what_it_was() -> None:
    net = chain()
    net.forward(end="conv")
    x = net.blobs["conv"].data[0, 1, 2, 2].copy()
    found = minicaffe.explain(net, "scale", (0, 1, 2, 2))
    assert isinstance(found, SumExplanation)
    assert found.terms[0].columns["x"] == pytest.approx(x if x > 0 else 0.1 * x) != found.value
    assert found.notes == ("the layer overwrites conv in place: x is its value before the layer ran",)


def test_nothing_is_left_behind() -> None:
    net = chain(TRAIN)
    net.forward_backward()
    weights = {n: [b.diff.copy() for b in blobs] for n, blobs in net.params.items()}
    before = [list(layer.param_propagate_down) for layer in net.layers]
    minicaffe.explain(net, "loss", (1, 1), backward=True, dy="ones")
    minicaffe.explain(net, "conv", (0, 0, 0, 0), backward=True)
    assert [list(layer.param_propagate_down) for layer in net.layers] == before
    assert not any(net._hooks.values())
    assert all(np.array_equal(a, b.diff) for n, arrays in weights.items() for a, b in zip(arrays, net.params[n]))
    assert net.blobs["loss"].diff == 0.5


def test_running_statistics_stay() -> None:
    net = net_of('type: "BatchNorm"', np.random.default_rng(0).standard_normal((4, 3, 2)), phase=TRAIN)
    assert minicaffe.explain(net, "it", (1, 2, 0)).agrees
    assert all(not blob.data.any() for blob in net.params["it"])


ROI_NET = 'type: "ROIPooling" roi_pooling_param { pooled_h: 2 pooled_w: 3 }'


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give roi (0 to 1), channel (0 to 1) and bin (0,0 to 1,2)"),
        ({"roi": 0, "bin": (0, 0)}, "give roi (0 to 1), channel (0 to 1) and bin (0,0 to 1,2)"),
        ({"roi": 2, "channel": 0, "bin": (0, 0)}, "roi 2 is out of range: out0 of shape 2x2x2x3 has rois 0 to 1"),
        ({"roi": -1, "channel": 0, "bin": (0, 0)}, "roi -1 is out of range"),
        ({"roi": 1, "channel": 7, "bin": (0, 0)}, "channel 7 is out of range: out0 of shape 2x2x2x3 has channels 0 to 1"),
        ({"roi": 1, "channel": 1, "bin": (2, 0)}, "bin 2,0 is out of range: out0 has 0,0 to 1,2"),
        ({"roi": 1, "channel": 1, "bin": (2,)}, "bin 2 has 1 numbers, but 2 are needed"),
        ({"at": (0, 0, 0, 3)}, "at 0,0,0,3 is out of range: out0 has 0,0,0,0 to 1,1,1,2"),
        ({"at": (0, 0, 0, 1.5)}, "at 0,0,0,1.5: indices are whole numbers"),
        ({"at": (0, None, 0, 0)}, "at 0,None,0,0: indices are whole numbers"),
        ({"at": (0, 0, 0, 0), "roi": 1}, "give at or roi, not both"),
        ({"cell": (0, 0)}, "cell is only for backward; give roi, channel and bin, or at"),
        ({"backward": True}, "give channel (0 to 1) and cell (0,0 to 4,5); item is 0 by default (0 to 0)"),
        ({"backward": True, "channel": 0, "cell": (0, 9)}, "cell 0,9 is out of range: in0 has 0,0 to 4,5"),
        ({"backward": True, "channel": 0, "cell": (0, 0), "item": 4}, "item 4 is out of range: in0 of shape 1x2x5x6 has"),
        ({"backward": True, "roi": 0}, "roi is only for forward; give channel and cell, or at"),
        ({"backward": True, "bottom": 1, "at": (0, 0)}, "bottom 1 has no gradient (in1)"),
        ({"backward": True, "bottom": 2}, "bottom 2 is out of range: it has bottoms 0 to 1"),
        ({"top": 1}, "top 1 is out of range: it has tops 0 to 0"),
        ({"backward": True, "at": (0, 0, 0, 0), "dy": "zeros"}, 'dy must be "ones", "random" or an array, got "zeros"'),
    ],
)  # fmt: skip
def test_errors_of_a_roi_layer(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Error) as error:
        minicaffe.explain(net_of(ROI_NET, MAP, ROIS), "it", **options)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("layer", "options", "message"),
    [
        ("covn", {}, 'the net has no layer "covn"; did you mean "conv"?'),
        ("conv", {}, "give at, an index into conv of shape 2x3x3x3: 0,0,0,0 to 1,2,2,2"),
        ("conv", {"at": (2, 0, 0, 0)}, "at 2,0,0,0 is out of range: conv has 0,0,0,0 to 1,2,2,2"),
        ("ip", {"at": 1}, "at 1 has 1 numbers, but 2 are needed for ip (2x3)"),
        ("conv", {"roi": 1}, "roi is only for ROI layers; give at for a Convolution layer"),
    ],
)
def test_errors_of_other_layers(layer: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(Error) as error:
        minicaffe.explain(chain(), layer, **options)
    assert message in str(error.value)


def test_errors_of_types_and_empty_blobs() -> None:
    covered = "AbsVal, AnchorTarget, Axpy, BN, BNLL, BatchNorm, "
    with pytest.raises(Error, match=rf'explain does not cover ArgMax \(layer "it"\); it covers {covered}'):
        minicaffe.explain(net_of('type: "ArgMax"', MAP), "it")
    covered = "the weights' gradients of BN, BatchNorm, Bias, Convolution, "
    with pytest.raises(Error, match=rf"does not cover the weights' gradients of ReLU .*; it covers {covered}"):
        minicaffe.explain(net_of('type: "ReLU"', MAP), "it", weight=0)
    with pytest.raises(Error, match="there are no rois"):
        minicaffe.explain(net_of(ROI_NET, MAP, np.zeros((0, 5))), "it", roi=0, channel=0, bin=(0, 0))
    with pytest.raises(Error, match="in0 of shape 0x3 is empty"):
        minicaffe.explain(net_of('type: "ReLU"', np.zeros((0, 3)), in_place=True), "it", (0, 0))


def test_taps_on_padding() -> None:
    text = 'type: "Convolution" convolution_param { num_output: 2 kernel_size: 3 pad: 1 weight_filler { type: "gaussian" } }'
    net = net_of(text, MAP)
    found = minicaffe.explain(net, "it", (0, 1, 0, 0))
    assert isinstance(found, SumExplanation)
    weight, padded = net.params["it"][0].data, np.pad(MAP[0], ((0, 0), (1, 1), (1, 1)))
    assert [(t.columns["x"], t.columns["weight"]) for t in found.terms] == [
        (padded[c, h, w], weight[1, c, h, w]) for c, h, w in np.ndindex(2, 3, 3)
    ]
    assert "5 of the 9 taps lie on padding, where x is 0" in str(found)
    assert found.text(rows=99).count("(padding)") == 10 and "in0[0, 0, -1, -1] (padding)" in found.text(rows=99)
    text = 'type: "Pooling" pooling_param { pool: AVE kernel_size: 3 pad: 1 }'
    assert "rows: from 0 * stride 1 - pad 1 = -1, kernel 3: [-1, 2), clipped to the map [0, 2): 1 on padding" in str(
        minicaffe.explain(net_of(text, MAP), "it", (0, 0, 0, 0))
    )


def test_a_weights_gradient_by_hand() -> None:
    text = """type: "Convolution" convolution_param { num_output: 4 group: 2 kernel_size: 2 stride: 2 pad: 1
    weight_filler { type: "gaussian" } }"""
    net = net_of(text, MAP)
    dy = np.random.default_rng(4).standard_normal((1, 4, 3, 4))
    net.params["it"][0].diff[...] = 7
    found = minicaffe.explain(net, "it", (3, 0, 1, 0), weight="it.0", dy=dy)
    assert isinstance(found, GradientExplanation)
    padded = np.pad(MAP[0], ((0, 0), (1, 1), (1, 1)))
    wanted = sum(dy[0, 3, h, w] * padded[1, 2 * h + 1, 2 * w] for h, w in np.ndindex(3, 4))  # channel 1: of group 1
    assert found.agrees and found.value == pytest.approx(wanted, rel=1e-6) and found.blob == "it.0"
    assert (net.params["it"][0].diff == 7).all(), "the diffs do not change"
    assert "it reads channel 1 of in0" in str(found) and "in 3 of 12 windows the tap lies on padding" in str(found)
    bias = minicaffe.explain(net, "it", 2, weight="bias", dy=dy)
    assert bias.value == pytest.approx(dy[0, 2].sum(), rel=1e-6) and not net.params["it"][1].diff.any()
    for options, message in (
        ({"weight": 2}, "weight 2: it has it.0 (weight), it.1 (bias)"),
        ({"weight": 0}, "give at, an index into it.0 of shape 4x1x2x2: 0,0,0,0 to 3,0,1,1"),
        ({"weight": 0, "at": (4, 0, 0, 0)}, "at 4,0,0,0 is out of range: it.0 has 0,0,0,0 to 3,0,1,1"),
        ({"weight": 0, "roi": 1}, "roi names no weight; give at, an index into it.0"),
    ):
        with pytest.raises(Error) as error:
            minicaffe.explain(net, "it", **options)  # type: ignore[arg-type]
        assert message in str(error.value)


def test_a_weights_gradient_of_the_loss_is_trainings() -> None:
    net = chain(TRAIN)
    net.forward_backward()
    for layer, number, at in (("conv", 0, (2, 1, 0, 1)), ("scale", 0, (1,)), ("ip", 0, (2, 20)), ("ip", 1, (0,))):
        trained = float(net.params[layer][number].diff[at])
        found = minicaffe.explain(net, layer, at, weight=number)
        assert found.agrees and found.value == pytest.approx(trained, rel=1e-5) and trained
        assert found.notes[-1] == "dy is the gradient of the loss (loss)"
    frozen = net_of('param { lr_mult: 0 } type: "Scale"', MAP, in_place=True)
    found = minicaffe.explain(frozen, "it", 0, weight=0)
    assert found.value == MAP[0, 0].sum() and "lr_mult is 0" in found.notes[0]


def test_a_frozen_bn_learns_nothing() -> None:
    net = net_of('type: "BN" bn_param { frozen: true }', MAP)
    with pytest.raises(Error, match=r'BN layer "it": blob 0 \(slope\) has no gradient: bn_param { frozen: true }'):
        minicaffe.explain(net, "it", (0, 0, 0, 0), weight="slope")


def test_running_statistics_stay_beside_a_learnt_scale() -> None:
    net = net_of('type: "BatchNorm" batch_norm_param { scale_bias: true }', MAP, phase=TRAIN)
    kept = [blob.data.copy() for blob in net.params["it"]]
    assert minicaffe.explain(net, "it", (0, 1, 2, 3)).agrees
    assert all(np.array_equal(blob.data, data) for blob, data in zip(net.params["it"], kept))


def test_terms_are_a_sequence() -> None:
    found = minicaffe.explain(chain(), "ip", (1, 2))
    assert isinstance(found, SumExplanation)
    assert len(found.terms) == 27 and len(list(found.terms)) == 27 and len(found.terms[3:5]) == 2
    assert found.terms[-1].at == (1, 2, 2, 2) and set(found.terms[0].columns) == {"x", "weight"}
    assert "11 smaller terms not shown, together" in str(found)
    assert "not shown" not in found.text(rows=27)


def test_blobs_behind_a_split_have_their_own_name() -> None:
    text = """input: "x" input_shape { dim: 2 dim: 3 }
    layer { name: "a" type: "ReLU" bottom: "x" top: "a" }
    layer { name: "b" type: "Eltwise" bottom: "x" bottom: "a" top: "b" }"""
    net = Net(text_format.Parse(text, caffe_pb2.NetParameter()), TEST)
    found = minicaffe.explain(net, "b", (1, 2))
    assert isinstance(found, SumExplanation)
    assert [term.blob for term in found.terms] == ["x", "a"]
    assert minicaffe.explain(net, "b", (1, 2), backward=True).blob == "x"


def test_another_number_is_reported() -> None:
    exact = minicaffe.explain(net_of(ROI_NET, MAP, ROIS), "it", (0, 0, 0, 0))
    total = minicaffe.explain(chain(), "ip", (0, 0))
    for found, wrong in ((exact, np.nextafter(exact.value, 1e9)), (total, total.value + 2e-4)):
        other = dataclasses.replace(found, value=wrong)
        assert found.agrees and not other.agrees
        assert "THEY DIFFER" in str(other)


def test_in_a_notebook() -> None:
    found = minicaffe.explain(chain(), "relu", (0, 0, 0, 0))
    assert found._repr_html_().startswith("<pre>ReLU layer") and "x &gt; 0" in found._repr_html_()


def test_what_is_equal_is_said_to_be() -> None:
    """Of whole numbers, though rounding would be allowed."""
    net = net_of('type: "InnerProduct" inner_product_param { num_output: 2 bias_term: false }', np.array([[1.0, 2.0]]))
    net.params["it"][0].data[...] = [[3, 4], [5, 6]]
    found = minicaffe.explain(net, "it", (0, 1))
    assert found.tolerance > 0
    assert found.verdict() == "computed here 17, by the layer 17: equal, bit for bit"
