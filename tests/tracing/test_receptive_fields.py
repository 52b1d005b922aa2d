"""Receptive fields: of every cell exactly the box around the inputs in which it has a gradient."""

from __future__ import annotations

import numpy as np
import pytest

import minicaffe
from minicaffe import TEST, TRAIN, Error, Net, receptive_field, set_random_seed
from minicaffe.blob import Array
from minicaffe.formats.prototxt import parse_net
from minicaffe.mode import Phase
from minicaffe.reads import Axis
from minicaffe.tracing.receptive_fields import Field

FILLERS = "weight_filler { type: 'uniform' min: 0.1 max: 1 } bias_filler { type: 'constant' value: 1 }"


def layer(kind: str, name: str, bottoms: str, block: str = "") -> str:
    """A layer of a prototxt; its only top has its name."""
    reads_from = " ".join(f"bottom: '{bottom}'" for bottom in bottoms.split())
    return f"layer {{ name: '{name}' type: '{kind}' {reads_from} top: '{name}' {block} }}"


def conv(name: str, bottom: str, window: str, kind: str = "Convolution", outputs: int = 2) -> str:
    return layer(kind, name, bottom, f"convolution_param {{ num_output: {outputs} {window} {FILLERS} }}")


def net_of(*layers: str, shape: tuple[int, ...] = (1, 2, 13, 11), phase: Phase = TEST) -> Net:
    """A net whose weights and input are positive, so that nothing cancels."""
    set_random_seed(5)
    dims = " ".join(f"dim: {n}" for n in shape)
    text = f'force_backward: true layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ {dims} }} }} }}'
    net = Net(parse_net("\n".join([text, *layers])), phase)
    net.blobs["data"].data[...] = np.random.default_rng(0).uniform(0.5, 1.5, shape)
    net.forward()
    return net


def box(gradient: Array) -> Field | None:
    """The box around what is not 0 in (H, W), rounding aside."""
    rows, columns = np.nonzero(gradient > 1e-5 * max(gradient.max(), 1e-30))
    if not len(rows):
        return None
    return Field(range(rows.min(), rows.max() + 1), range(columns.min(), columns.max() + 1))


def gradient_box(net: Net, blob: str, channel: int, row: int, column: int) -> Field | None:
    """Of what the input's pixels do to one element."""
    for other in net.blobs.values():
        other.diff[...] = 0
    net.blobs[blob].diff[0, channel, row, column] = 1
    last = max(i for i, node in enumerate(net.nodes) if blob in node.top_names)
    net.backward(start=net.layers[last].name)
    return box(np.abs(net.blobs["data"].diff).sum(axis=(0, 1)))


BRANCHES = [conv("a", "data", "kernel_size: 3 stride: 2"), conv("b", "data", "kernel_size: 7 pad: 2 stride: 2")]

NETS = {
    "windows": [
        conv("conv", "data", "kernel_h: 3 kernel_w: 5 stride: 2 pad_h: 1 pad_w: 0"),
        layer("ReLU", "conv", "conv"),
        conv("last", "conv", "kernel_size: 3 pad: 1"),
    ],
    "dilated": [conv("conv", "data", "kernel_size: 2 stride: 3"), conv("last", "conv", "kernel_size: 2 dilation: 2 pad: 1")],
    "depthwise": [conv("last", "data", "kernel_size: 3 stride: 2", "DepthwiseConvolution")],
    "pooled": [
        layer("LRN", "lrn", "data", "lrn_param { norm_region: WITHIN_CHANNEL local_size: 3 alpha: -0.5 }"),
        layer("Pooling", "last", "lrn", "pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }"),
    ],
    "global": [layer("Pooling", "last", "data", "pooling_param { pool: AVE global_pooling: true }")],
    "turned": [
        conv("conv", "data", "kernel_size: 3 stride: 2"),
        conv("last", "conv", "kernel_size: 4 stride: 2 pad: 1", "Deconvolution"),
    ],
    "between": [conv("last", "data", "kernel_size: 2 stride: 3", "Deconvolution")],
    "cropped": [
        *BRANCHES,
        conv("up", "a", "kernel_size: 4 stride: 2", "Deconvolution"),
        layer("Crop", "last", "up b", "crop_param { axis: 2 offset: 3 offset: 1 }"),
    ],
    "sum": [
        *BRANCHES,
        layer("Padding", "c", "a", "padding_param { pad_beg: 0 pad_end: 1 }"),
        layer("Crop", "d", "c b", "crop_param { axis: 2 }"),
        layer("Eltwise", "last", "d b"),
    ],
    "joined": [
        layer("Concat", "channels", "data data"),
        layer("Concat", "rows", "channels channels", "concat_param { axis: 2 }"),
        conv("last", "rows", "kernel_size: 5 stride: 3"),
    ],
    "sliced": [
        'layer { name: "cut" type: "Slice" bottom: "data" top: "left" top: "right" slice_param { axis: 3 slice_point: 4 } }',
        conv("last", "right", "kernel_size: 3 pad: 1"),
    ],
    "resized": [
        layer("Interp", "small", "data", "interp_param { height: 5 width: 4 }"),
        conv("last", "small", "kernel_size: 2"),
    ],
    "enlarged": [layer("Interp", "last", "data", "interp_param { height: 17 width: 21 pad_beg: -1 }")],
    "repeated": [
        layer("Upsample", "up", "data", "upsample_param { scale: 3 }"),
        conv("last", "up", "kernel_size: 2 stride: 2"),
    ],
    "tiled": [layer("Tile", "many", "data", "tile_param { axis: 2 tiles: 2 }"), conv("last", "many", "kernel_size: 4")],
    "scores": [
        conv("conv", "data", "kernel_size: 3 stride: 2", outputs=6),
        layer("Reshape", "low", "conv", "reshape_param { shape { dim: 0 dim: 2 dim: -1 dim: 0 } }"),
        layer("Softmax", "prob", "low"),
        layer("Reshape", "last", "prob", "reshape_param { shape { dim: 0 dim: 6 dim: -1 dim: 0 } }"),
    ],
    "softmax": [layer("Softmax", "last", "data", "softmax_param { axis: 3 }")],
    "norm": [layer("Normalize", "last", "data", "norm_param { across_spatial: false }")],
    "scaled": [layer("BatchNorm", "bn", "data"), layer("Scale", "scale", "bn"), layer("PReLU", "last", "scale")],
    "squeezed": [
        layer("Pooling", "mean", "data", "pooling_param { pool: AVE global_pooling: true }"),
        layer("Axpy", "last", "mean data data"),
    ],
    "again": [
        layer("InnerProduct", "ip", "data", f"inner_product_param {{ num_output: 12 {FILLERS} }}"),
        layer("Reshape", "maps", "ip", "reshape_param { shape { dim: 1 dim: 2 dim: 3 dim: 2 } }"),
        conv("last", "maps", "kernel_size: 2"),
    ],
}


@pytest.mark.parametrize("name", NETS)
def test_a_field_is_the_box_around_the_gradients(name: str) -> None:
    """Of every second cell, in channel 1: an edge of the field has a pixel that counts, and no pixel outside it does."""
    net = net_of(*NETS[name])
    _, _, height, width = net.blobs["last"].shape
    for row, column in list(np.ndindex(height, width))[::2]:
        assert receptive_field(net, "last", row, column).get("data") == gradient_box(net, "last", 1, row, column)


def test_a_maximum_reads_no_more_than_its_window() -> None:
    net = net_of(
        conv("conv", "data", "kernel_size: 3"), layer("Pooling", "last", "conv", "pooling_param { kernel_size: 3 stride: 2 }")
    )
    found, field = gradient_box(net, "last", 0, 1, 2), receptive_field(net, "last", 1, 2)["data"]
    assert found is not None
    assert {*found.rows} <= {*field.rows} == {*range(2, 7)}
    assert {*found.columns} <= {*field.columns} == {*range(4, 9)}


def test_by_hand() -> None:
    """VGG's first block: 3x3, 3x3, pool 2 by 2: a cell reads 6 pixels each way, 2 apart."""
    net = net_of(
        conv("conv1_1", "data", "kernel_size: 3 pad: 1"),
        layer("ReLU", "conv1_1", "conv1_1"),
        conv("conv1_2", "conv1_1", "kernel_size: 3 pad: 1"),
        layer("Pooling", "pool1", "conv1_2", "pooling_param { kernel_size: 2 stride: 2 }"),
        shape=(1, 3, 20, 24),
    )
    assert receptive_field(net, "pool1", 3, 5) == {"data": Field(range(4, 10), range(8, 14))}
    assert receptive_field(net, "pool1", 0, 11) == {"data": Field(range(4), range(20, 24))}
    assert str(receptive_field(net, "pool1", 3, 5)["data"]) == "rows 4 to 9, columns 8 to 13: 6 x 6"
    assert receptive_field(net, "data", 3, 5) == {"data": Field(range(3, 4), range(5, 6))}


def test_between_layers_in_place() -> None:
    net = net_of(layer("MVN", "norm", "data").replace("top: 'norm'", "top: 'data'"))
    assert receptive_field(net, "data", 3, 5, layer="data")["data"].statistics == ()
    assert receptive_field(net, "data", 3, 5)["data"].statistics == ("norm",)


@pytest.mark.parametrize(
    ("phase", "layers"),
    [
        (TRAIN, [layer("BatchNorm", "norm", "data")]),
        (TEST, [layer("MVN", "norm", "data")]),
        (TEST, [layer("BN", "norm", "data", "bn_param { bn_mode: LEARN }")]),
        (TEST, [layer("Normalize", "norm", "data", "norm_param {}")]),
    ],
)
def test_statistics_of_whole_maps_are_named(phase: Phase, layers: list[str]) -> None:
    """The field is that without them, though every pixel has a gradient."""
    net = net_of(*layers, conv("last", "norm", "kernel_size: 3"), phase=phase)
    field = receptive_field(net, "last", 4, 3)["data"]
    assert field == Field(range(4, 7), range(3, 6), ("norm",))
    assert str(field) == "rows 4 to 6, columns 3 to 5: 3 x 3; all, through the statistics of norm"
    for blob in net.blobs.values():
        blob.diff[...] = 0
    net.blobs["last"].diff[0, 0, 4, 3] = 1
    net.backward(start="last")
    assert np.count_nonzero(net.blobs["data"].diff) > 0.9 * net.blobs["data"].count


def test_each_bottom_of_a_convolution_has_its_top() -> None:
    """And each input of the net its field."""
    net = Net(
        parse_net(
            'input: "a" input_shape { dim: 1 dim: 1 dim: 5 dim: 5 } input: "b" input_shape { dim: 1 dim: 1 dim: 5 dim: 5 }'
            'layer { name: "conv" type: "Convolution" bottom: "a" bottom: "b" top: "c" top: "d"'
            f"convolution_param {{ num_output: 1 kernel_size: 3 {FILLERS} }} }}" + layer("Eltwise", "sum", "c d")
        ),
        TEST,
    )
    field = Field(range(1, 4), range(2, 5))
    assert receptive_field(net, "d", 1, 2) == {"b": field}
    assert receptive_field(net, "sum", 1, 2) == {"a": field, "b": field}


def test_the_shapes_detector() -> None:
    """The proposals' scores go through two Reshapes; what follows the proposals may depend on any pixel.

    By hand, conv5: 3 + 2 * 2 + 2 * 4 + 2 * 4 + 2 * 8 = 39."""
    net = Net("examples/shapes/rfcn/test.prototxt", TEST)
    field = receptive_field(net, "rpn_cls_prob_reshape", 2, 12)["data"]
    assert field == receptive_field(net, "rpn_cls_score", 2, 12)["data"]
    assert str(field).endswith(": 156 x 236; all, through the statistics of bn_conv1 and 8 more layers")
    at_conv5 = "rows 61 to 99, columns 77 to 115: 39 x 39; all, through the statistics of bn_conv1 and 4 more layers"
    assert str(receptive_field(net, "conv5", 10, 12)["data"]) == at_conv5
    pooled = next(name for name in net.blobs if name.startswith("psroipooled_cls"))
    assert len(receptive_field(net, pooled, 0, 0)["data"].columns) == 320


def test_a_class_of_ones_own() -> None:
    """It reads any place until it says otherwise."""

    class Shifted(minicaffe.Layer):
        num_bottom = num_top = 1

        def reshape(self, bottom, top):  # type: ignore[no-untyped-def]
            top[0].reshape(*bottom[0].shape)

        def forward_cpu(self, bottom, top):  # type: ignore[no-untyped-def]
            top[0].data[...] = np.roll(bottom[0].data, 1, axis=2)

    minicaffe.register("ShiftedForFields", Shifted)
    net = net_of(layer("ShiftedForFields", "last", "data"))
    assert receptive_field(net, "last", 4, 4)["data"] == Field(range(13), range(11))

    def reads(self, bottom, top, b=0, t=0):  # type: ignore[no-untyped-def]
        return Axis(first=-1, last=-1, modulo=bottom[0].shape[2]), Axis()

    Shifted.reads = reads
    assert receptive_field(net, "last", 4, 4)["data"] == Field(range(3, 4), range(4, 5))
    assert receptive_field(net, "last", 0, 4)["data"] == Field(range(12, 13), range(4, 5))


@pytest.mark.parametrize(
    ("blob", "row", "column", "message"),
    [
        ("nose", 0, 0, "the net has no blob 'nose'; it has data, conv, flat"),
        ("flat", 0, 0, r"blob flat has shape \(1, 24\): a receptive field is of a cell of maps, with 4 axes"),
        ("conv", 4, 0, r"cell \(4, 0\) is outside the 4 x 3 maps of blob conv"),
        ("conv", 0, -1, r"cell \(0, -1\) is outside the 4 x 3 maps of blob conv"),
    ],
)
def test_errors(blob: str, row: int, column: int, message: str) -> None:
    net = net_of(conv("conv", "data", "kernel_size: 2 stride: 3"), layer("Flatten", "flat", "conv"), shape=(1, 2, 11, 8))
    with pytest.raises(Error, match=message):
        receptive_field(net, blob, row, column)
