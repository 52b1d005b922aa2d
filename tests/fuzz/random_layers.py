"""How a random layer of each type is put on a random net: valid parameters, at random."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
from net_builder import Builder, NoPlaceError
from random_detection import DETECTION
from random_rois import ROIS

FILLERS = ("constant", "gaussian", "uniform", "xavier", "msra", "positive_unitball")


def filler(b: Builder, name: str = "weight_filler") -> str:
    return f'{name} {{ type: "{b.one(FILLERS)}" }}' if b.chance(0.3) else ""


def window(b: Builder, lengths: tuple[int, ...], *, dilated: bool = True, padded: bool = True) -> tuple[list[int], str]:
    """A window that fits a map, its sides each its own: their sizes, and pad, stride, dilation as prototxt, by side."""
    sides = []
    for length in lengths:
        size, dilation = b.one([1, 2, 3, 3, 3, 4]), b.one([1, 1, 2]) if dilated else 1
        pad = b.whole(0, min(size - 1, 2)) if padded else 0
        if (size - 1) * dilation + 1 > length + 2 * pad:
            size, pad = 1, 0
        stride = b.one([1, 1, 1, 2])
        sides.append((size, pad, stride if dilated else min(stride, size), dilation))  # pooling: no window beyond the map
    words = []
    for name, values in zip(("kernel", "pad", "stride"), list(zip(*sides))[:3]):
        if len(lengths) == 2:
            words += [f"{name}_h: {values[0]} {name}_w: {values[1]}"]
        else:
            words += [f"{name if name != 'kernel' else 'kernel_size'}: {v}" for v in values]
    if dilated:
        words += [f"dilation: {side[3]}" for side in sides]
    return [side[0] for side in sides], " ".join(words)


def convolution(b: Builder, kind: str = "Convolution") -> None:
    x = b.pick(3, 4, 4, 4, 5)
    channels = b.shape(x)[1]
    group = b.one([g for g in (1, 1, 2, 3, channels) if channels % g == 0])
    _, sides = window(b, b.shape(x)[2:], padded=kind == "Convolution")
    bias = b.chance(0.7)
    words = f"num_output: {group * b.whole(1, 4)} group: {group} bias_term: {str(bias).lower()} {sides} {filler(b)}"
    body = f"convolution_param {{ {words} }}"
    made = b.share(kind, x, body, 1 + bias) if b.chance(0.4) else b.add(kind, [x], body)
    b.open.update(made)
    if b.chance(0.3):
        in_place(b)


def deconvolution(b: Builder) -> None:
    convolution(b, "Deconvolution")


def depthwise(b: Builder) -> None:
    x = b.pick(4)
    channels = b.shape(x)[1]
    _, sides = window(b, b.shape(x)[2:])
    kind = b.one(["DepthwiseConvolution", "ConvolutionDepthwise"])
    b.open.update(b.add(kind, [x], f"convolution_param {{ num_output: {channels} group: {channels} {sides} }}"))


def im2col(b: Builder) -> None:
    x = b.pick(4)
    b.add("Im2col", [x], f"convolution_param {{ {window(b, b.shape(x)[2:])[1]} }}")


def inner_product(b: Builder) -> None:
    x = b.pick()
    axis = b.whole(1, max(1, len(b.shape(x)) - 1)) if len(b.shape(x)) > 1 else 0
    bias, transpose = b.chance(0.7), b.chance(0.3)
    words = f"num_output: {b.whole(2, 6)} axis: {axis} bias_term: {str(bias).lower()} transpose: {str(transpose).lower()}"
    body = f"inner_product_param {{ {words} {filler(b)} }}"
    made = b.share("InnerProduct", x, body, 1 + bias) if b.chance(0.4) else b.add("InnerProduct", [x], body)
    b.open.update(made)


def sharing(b: Builder) -> None:
    """A layer that shares the weights of one before it, on another blob of its shape, or the same blob."""
    if not b.shared:
        raise NoPlaceError
    kind, _, body, shape, _ = b.one(b.shared)
    b.open.update(b.add(kind, [b.pick(where=lambda s: s == shape)], body))


def in_place(b: Builder) -> None:
    """A chain that overwrites a blob whose maker's backward does not read it."""
    found = [name for name in b.unread if name in b.open and b.blobs[name].count]
    if not found:
        raise NoPlaceError
    x = b.one(found)
    axes = len(b.shape(x))
    if axes > 1 and enough(b.shape(x)) and b.chance(0.5):
        b.add("BatchNorm", [x], batch_norm_words(b), in_place=True)
    if axes > 1 and b.chance(0.5):
        b.add("Scale", [x], f"scale_param {{ bias_term: {b.one(['true', 'false'])} }}", in_place=True)
    elif axes > 1 and b.chance(0.3):
        b.add("Bias", [x], in_place=True)
    kinds = ["ReLU"] * 5 + [k for k in NEURONS if k not in ("Log", "Exp", "Power", "Threshold") and (k != "PReLU" or axes > 1)]
    kind = b.one(kinds)
    slope = f"relu_param {{ negative_slope: {b.number(0, 0.5)} }}" if b.chance(0.2) else ""
    b.add(kind, [x], slope if kind == "ReLU" else NEURONS[kind](b), in_place=True)
    if kind == "ReLU" and b.chance(0.2):
        b.add("Dropout", [x], NEURONS["Dropout"](b), in_place=True)


def enough(shape: tuple[int, ...]) -> bool:
    """Whether a channel has more than two values: the gradient of two that are normalized is a rest of nearly nothing."""
    return prod(shape) > 3 * shape[1]


def batch_norm_words(b: Builder) -> str:
    stats = b.one(["", "", "use_global_stats: true", "use_global_stats: false"])
    return f"batch_norm_param {{ {stats} eps: {b.one(['1e-5', '0.01'])} }}"


NEURONS: dict[str, Callable[[Builder], str]] = {
    "ReLU": lambda b: f"relu_param {{ negative_slope: {b.one(['0', '0.1', '-0.3'])} }}",
    "PReLU": lambda b: f"prelu_param {{ channel_shared: {b.one(['true', 'false'])} }}",
    "ELU": lambda b: f"elu_param {{ alpha: {b.number(0.1, 2)} }}",
    "Sigmoid": lambda b: "",
    "TanH": lambda b: "",
    "AbsVal": lambda b: "",
    "BNLL": lambda b: "",
    "Clip": lambda b: f"clip_param {{ min: {b.number(-2, 0)} max: {b.number(0, 2)} }}",
    "Mish": lambda b: "",
    "Swish": lambda b: f"swish_param {{ beta: {b.number(0.3, 2)} }}",
    "Threshold": lambda b: f"threshold_param {{ threshold: {b.number(-1, 1)} }}",
    "Dropout": lambda b: f"dropout_param {{ dropout_ratio: {b.number(0, 0.7)} scale_train: {b.one(['true', 'false'])} }}",
    "Exp": lambda b: f"exp_param {{ base: {b.one(['-1', '2', '0.5'])} scale: {b.number(-1, 1)} shift: {b.number(-1, 1)} }}",
    "Log": lambda b: f"log_param {{ base: {b.one(['-1', '2'])} scale: {b.number(0.5, 2)} shift: {b.number(0.2, 1)} }}",
    "Power": lambda b: (
        f"power_param {{ power: {b.one(['0', '1', '2', '3', '0.5', '-1', '1.7'])}"
        f" scale: {b.number(0.3, 1.5)} shift: {b.number(0.2, 1)} }}"
    ),
}


def neuron(b: Builder) -> None:
    kind = b.one(list(NEURONS))
    x = b.pick(2, 3, 4, 5) if kind == "PReLU" else b.pick()
    if kind in ("Log", "Power", "Exp"):
        x = b.add("Sigmoid", [x])[0]
    b.add(kind, [x], NEURONS[kind](b), dead=[0] if kind == "Threshold" else [])


def batch_norm(b: Builder) -> None:
    b.open.update(b.add("BatchNorm", [b.pick(2, 3, 4, 5, where=enough)], batch_norm_words(b)))


def scale(b: Builder, kind: str = "Scale") -> None:
    x = b.pick()
    axes = len(b.shape(x))
    axis = b.whole(0, axes - 1)
    count = b.whole(0, axes - axis)
    word = "scale" if kind == "Scale" else "bias"
    extra = f"bias_term: {b.one(['true', 'false'])}" if kind == "Scale" else ""
    if b.chance(0.4):
        other = b.input(b.normal(*b.shape(x)[axis : axis + max(count, 1)]) + 1.5, free=b.chance(0.5))
        b.add(kind, [x, other], f"{word}_param {{ axis: {axis} {extra} }}")
    else:
        b.add(kind, [x], f"{word}_param {{ axis: {axis} num_axes: {b.one([count, -1])} {extra} }}")


def bias(b: Builder) -> None:
    scale(b, "Bias")


def normalizing(b: Builder) -> None:
    kind = b.one(["LRN", "MVN", "Normalize", "Softmax"])
    x = b.pick(2, 3, 4, 5) if kind == "Softmax" else b.pick(4, where=lambda s: s[2] * s[3] > 3)
    region, size = b.one(["ACROSS_CHANNELS", "WITHIN_CHANNEL"]), b.one([1, 3, 5])
    words = {
        "LRN": f"lrn_param {{ local_size: {size} alpha: {b.number(0.01, 1)} beta: {b.number(0.3, 1)} norm_region: {region} }}",
        "MVN": f"mvn_param {{ normalize_variance: {b.one(['true', 'false'])} across_channels: {b.one(['true', 'false'])} }}",
        "Normalize": f"norm_param {{ across_spatial: {b.one(['true', 'false'])} channel_shared: {b.one(['true', 'false'])} }}",
        "Softmax": f"softmax_param {{ axis: {b.whole(-1, len(b.shape(x)) - 1)} }}",
    }
    b.add(kind, [x], words[kind])


def pooling(b: Builder) -> None:
    x = b.pick(4)
    height, width = b.shape(x)[2:]
    method = b.one(["MAX", "MAX", "AVE", "AVE", "STOCHASTIC"])
    if method == "STOCHASTIC":
        x = b.add("Sigmoid", [x])[0]
    if b.chance(0.2):
        words = "global_pooling: true"
    else:
        _, words = window(b, (height, width), dilated=False, padded=method != "STOCHASTIC")
        words += f" round_mode: {b.one(['CEIL', 'FLOOR'])}"
    b.open.update(b.add("Pooling", [x], f"pooling_param {{ pool: {method} {words} }}"))


def spp(b: Builder) -> None:
    x = b.pick(4, where=lambda s: min(s[2:]) >= 4)
    b.add("SPP", [x], f"spp_param {{ pyramid_height: {b.whole(1, 2)} pool: {b.one(['MAX', 'AVE'])} }}")


def crop(b: Builder) -> None:
    x = b.pick(where=lambda s: len(s) > 1)
    shape = b.shape(x)
    axis = b.whole(0, len(shape) - 1)
    cut = [b.whole(1, n) for n in shape[axis:]]
    offsets = " ".join(f"offset: {b.whole(0, n - m)}" for n, m in zip(shape[axis:], cut))
    reference = b.input(b.normal(*[1] * axis, *cut), "like")
    b.add("Crop", [x, reference], f"crop_param {{ axis: {axis} {offsets} }}")


def concat(b: Builder) -> None:
    x = b.pick()
    shape = b.shape(x)
    axis = b.whole(0, len(shape) - 1)
    others = [b.pick(where=lambda s: _but(s, axis) == _but(shape, axis) and len(s) == len(shape)) for _ in range(b.whole(0, 2))]
    made = b.add("Concat", [x, *others], f"concat_param {{ axis: {axis} }}")
    if others:  # of one bottom it is that bottom's memory, as in Caffe
        b.open.update(made)


def _but(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def slicing(b: Builder) -> None:
    x = b.pick(where=lambda s: max(s) > 1)
    shape = b.shape(x)
    axis = b.one([i for i, n in enumerate(shape) if n > 1])
    points = sorted(b.random.choice(np.arange(1, shape[axis]), b.whole(1, min(2, shape[axis] - 1)), replace=False))
    words = " ".join(f"slice_point: {p}" for p in points)
    b.add("Slice", [x], f"slice_param {{ axis: {axis} {words} }}", tops=len(points) + 1)


def eltwise(b: Builder) -> None:
    x = b.pick()
    shape = b.shape(x)
    others = [b.pick(where=lambda s: s == shape) for _ in range(b.whole(0, 1))]
    others += [b.input(b.normal(*shape), free=b.chance(0.5))]
    kind = b.one(["SUM", "SUM", "PROD", "MAX"])
    words = " ".join(f"coeff: {b.number(-2, 2)}" for _ in [x, *others]) if kind == "SUM" and b.chance(0.5) else ""
    # not "false": the gradient of a product with a 0 in it would be NaN then, as it is in Caffe
    stable = "stable_prod_grad: true" if kind == "PROD" and b.chance(0.3) else ""
    made = b.add("Eltwise", [x, *others], f"eltwise_param {{ operation: {kind} {words} {stable} }}")
    if kind != "PROD":
        b.open.update(made)


def arranging(b: Builder) -> None:
    x = b.pick()
    shape = b.shape(x)
    axes = len(shape)
    start = b.whole(0, axes - 1)
    dims = [*shape[:start], -1] if b.chance(0.5) else [0, -1, 1]
    kind = b.one(["Flatten", "Reshape", "Permute", "Tile", "Split"])
    words = {
        "Flatten": f"flatten_param {{ axis: {start} end_axis: {b.whole(start, axes - 1)} }}",
        "Reshape": "reshape_param { shape { " + " ".join(f"dim: {n}" for n in dims) + " } }",
        "Permute": "permute_param { " + " ".join(f"order: {i}" for i in b.random.permutation(axes)) + " }",
        "Tile": f"tile_param {{ axis: {start} tiles: {b.whole(1, 3)} }}",
        "Split": "",
    }
    b.add(kind, [x], words[kind], tops=b.whole(1, 3) if kind == "Split" else 1)


def reduction(b: Builder) -> None:
    x = b.pick()
    kind = b.one(["SUM", "ASUM", "SUMSQ", "MEAN"])
    axis = b.whole(0, len(b.shape(x)) - 1)
    b.add("Reduction", [x], f"reduction_param {{ operation: {kind} axis: {axis} coeff: {b.number(-1, 1)} }}")


def choosing(b: Builder) -> None:
    x = b.pick()
    count = b.shape(x)[0]
    if b.chance(0.5):
        chosen = b.random.integers(0, count, b.whole(1, 4)).astype(float)
        b.add("BatchReindex", [x, b.input(chosen, "index")])
    else:
        keep = b.random.integers(0, 2, count).astype(float)
        keep[b.whole(0, count - 1)] = 1
        y = b.add("Filter", [x, b.input(keep, "keep")], dead=[0])  # its top has another shape once it runs
        b.add("Reduction", y, f"reduction_param {{ operation: SUMSQ }} loss_weight: {b.number(0.2, 2)}", dead=[0])
        b.losses += 1


def embed(b: Builder) -> None:
    rows = b.whole(2, 7)
    words = b.input(b.random.integers(0, rows, b.distinct((2, 4), (3, 5))).astype(float), "words")
    b.add(
        "Embed",
        [words],
        f"embed_param {{ num_output: {b.whole(2, 6)} input_dim: {rows} bias_term: {b.one(['true', 'false'])} }}",
    )


def recurrent(b: Builder) -> None:
    steps, streams, units = b.distinct((1, 4), (1, 3), (2, 5))
    found = [n for n in b.free if b.shape(n)[:2] == (steps, streams) and len(b.shape(n)) > 2 and b.blobs[n].count]
    x = b.one(found) if found else b.input(b.normal(steps, streams, b.whole(2, 6)), free=True)
    going = b.random.integers(0, 2, (steps, streams)).astype(float)
    going[0] = 0
    cont = b.input(going, "cont")
    kind = b.one(["RNN", "LSTM"])
    static = [b.input(b.normal(streams, b.whole(2, 4)), free=True)] if b.chance(0.3) else []
    states = {"RNN": 1, "LSTM": 2}[kind]
    expose = b.chance(0.3)
    first = [b.input(b.normal(1, streams, units), "state") for _ in range(states)] if expose else []
    words = f'recurrent_param {{ num_output: {units} expose_hidden: {str(expose).lower()} weight_filler {{ type: "xavier" }} }}'
    tops = 1 + states * expose
    b.add(kind, [x, cont, *static, *first], words, tops=tops, dead=range(1, tops))


def lstm_unit(b: Builder) -> None:
    streams, units = b.distinct((1, 3), (2, 5))
    before, gates = b.input(b.normal(1, streams, units), free=True), b.input(b.normal(1, streams, 4 * units), free=True)
    cont = b.input(b.random.integers(0, 2, (1, streams)).astype(float), "cont")
    b.add("LSTMUnit", [before, gates, cont], tops=2)


def source(b: Builder) -> None:
    shape = " ".join(f"dim: {n}" for n in b.distinct((1, 3), (2, 6), (3, 7)))
    if b.chance(0.5):
        b.add("Parameter", [], f"parameter_param {{ shape {{ {shape} }} }}")
    else:
        kind = b.one(["constant", "gaussian", "uniform"])
        b.add("DummyData", [], f'dummy_data_param {{ data_filler {{ type: "{kind}" value: 0.7 }} shape {{ {shape} }} }}')


def judging(b: Builder) -> None:
    """Layers that pass no gradient."""
    x = b.pick(2, 3, 4, 5)
    shape = b.shape(x)
    kind = b.one(["Accuracy", "ArgMax", "PriorBox", "Silence"])
    if kind == "Accuracy":
        labels = b.input(b.random.integers(0, shape[1], (shape[0], *shape[2:])).astype(float), "labels")
        tops = b.whole(1, 2)
        b.add("Accuracy", [x, labels], f"accuracy_param {{ top_k: {b.whole(1, shape[1])} }}", tops=tops, dead=range(tops))
    elif kind == "ArgMax":
        words = f"axis: {b.whole(0, len(shape) - 1)}" if b.chance(0.5) else ""
        b.add("ArgMax", [x], f"argmax_param {{ {words} out_max_val: {b.one(['true', 'false'])} }}", dead=[0])
    elif kind == "PriorBox" and len(shape) == 4:
        image = b.input(b.normal(1, 3, *b.distinct((20, 30), (31, 40))), "image")
        words = f"min_size: {b.number(3, 9)} aspect_ratio: 2 flip: {b.one(['true', 'false'])} clip: {b.one(['true', 'false'])}"
        b.add("PriorBox", [x, image], f"prior_box_param {{ {words} }}", dead=[0])
    elif kind == "Silence":
        b.add("Silence", [x], tops=0)


LAYERS: list[Callable[[Builder], None]] = [
    *(convolution, convolution, convolution, inner_product, inner_product, pooling, pooling, eltwise, eltwise),
    *(in_place, in_place, in_place, in_place, neuron, neuron, neuron, batch_norm, scale, bias, normalizing, normalizing),
    *(deconvolution, depthwise, im2col, sharing, sharing, spp, crop, concat, slicing, arranging, arranging, reduction),
    *(choosing, embed, recurrent, lstm_unit, source, judging, *ROIS, *DETECTION),
]
