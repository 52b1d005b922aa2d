"""The contract of compiled loops: whatever computes gives one result. The only table of all loops of the layers.

Each entry is something small that runs some loops. It is computed
- by its definition in NumPy, if the entry has one, or else as NumPy does, in float64: all others have to give this;
- by the loops' definitions in Python, table by table (loops_in_python), which also says which loops ran;
- by machine code, in float32 on 1 and 3 threads, whose results have the same bits; with `-m slow` also in float64.
A loop that no entry names fails the last test: add an entry, or the loop to one.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
from layer_case import LayerCase
from loops_in_python import loops_in_python, name_of
from roi_cases import some_rois

import minicaffe.compiled
import minicaffe.layers
from minicaffe import kernels, set_num_threads
from minicaffe.blob import Array, Blob
from minicaffe.compiled import jit
from minicaffe.compiled.box_codes import decode_all
from minicaffe.compiled.jit import Loop
from minicaffe.kernels import step_of
from minicaffe.layers.conv import gradients, matrix_products, winograd
from minicaffe.layers.conv.window import (
    Window,
    convolve_by_definition,
    data_gradient_by_definition,
    weight_gradient_by_definition,
)
from minicaffe.layers.elementwise.epilogue import Epilogue, epilogue_step
from minicaffe.layers.forks.crf.permutohedral import Lattice
from minicaffe.layers.ssd.box_codes import CENTER_SIZE, CORNER, CORNER_SIZE, Priors, box_areas, decode
from minicaffe.layers.ssd.detection_rows import image_detections
from minicaffe.mode import TEST, TRAIN, Phase
from minicaffe.ops import nms

pytestmark = pytest.mark.skipif(not jit.installed(), reason="Numba (the extra fast) is not installed")

Run = Callable[[Any], list[Array]]
"""Computes something with arrays of this type: all results."""


class Entry(NamedTuple):
    """loops: those that run. single: whether float32 alone takes these loops; of other types others run. defined: computes the
    same results by their definition, in float64."""

    run: Run
    loops: str
    single: bool = False
    defined: Callable[[], list[Array]] | None = None


def eighths(*shape: int, seed: int = 0, bound: int = 24) -> Array:
    """Numbers that are the same in float32 and float64."""
    return np.random.default_rng([seed, *shape]).integers(-bound, bound + 1, shape) / 8


def distinct(*shape: int, seed: int = 0) -> Array:
    """The same, none twice: there is one maximum."""
    count = int(np.prod(shape))
    return (np.random.default_rng([seed, *shape]).permutation(count).reshape(shape) - count // 2) / 64


def layer(text: str, *bottoms: Array, tops: int = 1, phase: Phase = TEST, backward: bool = True) -> Run:
    """A layer's tops, the bottoms' gradients and the weights'."""

    def run(dtype: Any) -> list[Array]:
        case = LayerCase(text, *bottoms, tops=tops, phase=phase, dtype=dtype)
        for i, blob in enumerate(case.layer.blobs):
            blob.data[...] = eighths(*blob.shape, seed=i, bound=8)
        found = case.forward()
        if backward:
            dy = [eighths(*top.shape, seed=7 + i) for i, top in enumerate(case.top[:1])]
            found += case.backward(*dy) + [blob.diff.copy() for blob in case.layer.blobs]
        return found

    return run


def convolution(loops: str, kind: str, inside: str, shape: tuple[int, ...], single: bool = False) -> Entry:
    text, x = f"type: '{kind}' convolution_param {{ {inside} }}", eighths(*shape)

    def defined() -> list[Array]:
        made = LayerCase(text, x).layer
        weight, bias = (eighths(*blob.shape, seed=i, bound=8) for i, blob in enumerate(made.blobs))
        y = convolve_by_definition(x, weight, made.window, made.group) + bias[:, None, None]
        dy = eighths(*y.shape, seed=7)
        dx = data_gradient_by_definition(dy, weight, made.window, made.group, shape[2:])
        return [y, dx, weight_gradient_by_definition(x, dy, made.window, made.group), dy.sum(axis=(0, 2, 3))]

    return Entry(layer(text, x), loops, single, defined)


MAPS = distinct(2, 12, 9, 11)
ROIS = np.round(8 * some_rois()) / 8


def rois(kind: str, inside: str, phase: Phase = TRAIN) -> Run:
    block = {"ROIPooling": "roi_pooling_param", "PSROIPooling": "psroi_pooling_param", "PSROIAlign": "psroi_align_param"}
    return layer(
        f"type: '{kind}' {block.get(kind, 'roi_align_param')} {{ spatial_scale: 0.5 {inside} }}", MAPS, ROIS, phase=phase
    )


def epilogues(dtype: Any) -> list[Array]:
    """In place, of channels that follow one another, and of every second image; backward."""
    y, diff = eighths(4, 6, 20, 30).astype(dtype), eighths(4, 6, 20, 30, seed=1).astype(dtype)
    scale, shift = eighths(6, seed=2).astype(dtype), eighths(6, seed=3).astype(dtype)
    made = [Blob(y.shape, dtype) for _ in range(2)]
    for epilogue in (Epilogue(scale, shift, 0.25), Epilogue(shift=shift, negative_slope=0.0)):
        for blob in made:
            blob.data[...] = y
        epilogue_step(made[0], made[1], epilogue)()
        epilogue_step(made[0], made[0], epilogue)()
        epilogue(y)
        epilogue(y[::2])
        epilogue.backward(y, diff)
    return [y, diff, *(blob.data.copy() for blob in made)]


def kept_factors(dtype: Any) -> list[Array]:
    """Winograd's convolution with factors that are made once, and what comes after it."""
    window = Window((3, 3), (1, 1), (1, 1), (2, 1))
    x, weight = eighths(2, 6, 9, 21).astype(dtype), eighths(40, 3, 3, 3, bound=8).astype(dtype)
    epilogue = Epilogue(eighths(40).astype(dtype), eighths(40, seed=1).astype(dtype), 0.25)
    y = np.full((2, 40, *window.output((9, 21))), np.nan, dtype)
    if kernels.compiled():
        winograd.convolve(x, weight, window, 2, y, epilogue, factors=winograd.factors_of(weight, window, 2))
    else:
        y = convolve_by_definition(x, weight, window, 2)
        epilogue(y)
    return [y]


def few_windows(dtype: Any) -> list[Array]:
    """Gradients of a convolution where most of dy is zero."""
    window = Window((3, 2), (2, 1), (1, 1), (1, 2))
    x, weight = eighths(2, 5, 12, 9).astype(dtype), eighths(7, 5, 3, 2).astype(dtype)
    dy = eighths(2, 7, *window.output((12, 9)), seed=1).astype(dtype)
    dy *= np.random.default_rng(1).random((2, 1, *dy.shape[2:])) < 0.1
    dx, dweight = np.full_like(x, np.nan), np.zeros_like(weight)
    small = dict.fromkeys(("LEAST", "LEAST_SEEN", "LEAST_CHANNELS", "LEAST_FILTERS", "LEAST_EACH"), 1)
    with patch.multiple(gradients, **small), patch.object(matrix_products, "LEAST", 1):
        gradients.gradients(x, dy, weight, window, 1, dx, dweight)
    return [dx, dweight]


def boxes(*shape: int) -> Array:
    corners = np.abs(eighths(*shape, 2, bound=20))
    return np.concatenate([corners, corners + np.abs(eighths(*shape, 2, seed=1, bound=16))], axis=-1)


def suppressed(dtype: Any) -> list[Array]:
    dets = np.column_stack([boxes(60) * 8, distinct(60)]).astype(dtype)
    return [nms(dets, threshold, limit) for threshold in (0.3, 0.6) for limit in (0, 5)]


def decoded(dtype: Any) -> list[Array]:
    """Boxes and areas, by all codes."""
    found = []
    priors = np.stack([boxes(9) + np.array([0, 0, 1, 1]), np.full((9, 4), 0.25)]).astype(dtype)
    for code in (CORNER, CENTER_SIZE, CORNER_SIZE):
        for in_target in (False, True):
            codes = eighths(9, 2, 4, bound=8).astype(dtype)
            made, areas = np.empty((2, 9, 4), dtype), np.empty((2, 9), dtype)
            if kernels.compiled():
                assert decode_all(codes, priors, code, in_target, made, areas) == 9
            else:
                made[...] = decode(codes.swapaxes(0, 1), Priors(*priors), code, in_target)
                areas[...] = box_areas(made)
            found += [made, areas]
    return found


def detections(dtype: Any) -> list[Array]:
    """Of all classes, with boxes of their own and with the same; adaptive thresholds."""
    scores = np.abs(distinct(3, 40)).astype(dtype) / 2
    settings = {"background": 0, "least": 0.1, "nms_threshold": 0.6}
    return [
        image_detections(boxes(sets, 40).astype(dtype), scores, top_k=top_k, keep_top_k=keep, eta=eta, **settings)
        for sets, top_k, keep, eta in ((3, 20, 99, 1.0), (1, None, 30, 0.9))
    ]


def filtered(dtype: Any) -> list[Array]:
    """By the permutohedral lattice, and its transpose."""
    lattice, x = Lattice(eighths(30, 3), np.dtype(dtype)), eighths(4, 30).astype(dtype)
    return [lattice.filter(x), lattice.filter(x, reverse=True)]


def rearranged(dtype: Any) -> list[Array]:
    """What a net runs of layers that only copy: rows, every other number, and matrices that are turned."""
    x, found = eighths(2, 19, 6, 9), []
    texts = [("Permute", f"permute_param {{ order: {a} order: {b} order: {c} order: {d} }}") for a, b, c, d in ORDERS]
    for kind, inside in (*texts, ("Concat", "")):
        case = LayerCase(f"type: '{kind}' {inside}", *([x, x[:, :3]] if kind == "Concat" else [x]), dtype=dtype)
        step = step_of(case.layer, case.bottom, case.top)
        found.append(case.forward()[0] if step is None else (step(), case.top[0].data.copy())[1])
    return found


def maps_of_flow(fill: str) -> Run:
    flow = eighths(2, 2, 5, 9, bound=20)
    return layer(f"type: 'FlowWarp' flow_warp_param {{ fill_value: {fill} }}", eighths(2, 3, 5, 9), flow)


MASK = np.random.default_rng(0).permuted(np.broadcast_to(np.arange(63), (6, 63)), axis=1)[:, :12].reshape(2, 3, 3, 4)
LRN = "type: 'LRN' lrn_param {{ local_size: {} alpha: 2 k: 1.5 norm_region: {} }}"
POOLING = "type: 'Pooling' pooling_param {{ {} }}"
WINOGRAD = "epilogue.scale_shift_relu winograd_loops.[!m]* winograd_loops.multiply"
ORDERS = (0, 2, 3, 1), (2, 1, 0, 3), (3, 0, 2, 1), (1, 0, 3, 2)
CORRELATION = "type: 'Correlation' correlation_param { pad: 3 kernel_size: 3 max_displacement: 3 stride_1: 2 stride_2: 2 }"

ENTRIES = {
    "depthwise 3x3": convolution(
        "depthwise.{channels_gradient,inside,kernels_gradient,lay_out,sum_up} depthwise_3x3.convolve_maps",
        "DepthwiseConvolution",
        "num_output: 8 kernel_size: 3 pad: 1",
        (2, 4, 23, 37),
    ),
    "depthwise 3x3, stride 2": convolution(
        "depthwise.{channels_gradient,inside,lay_out} depthwise_3x3.convolve_maps",
        "DepthwiseConvolution",
        "num_output: 4 kernel_size: 3 pad: 1 stride: 2",
        (1, 4, 23, 37),
    ),
    "depthwise 2x5": convolution(
        "depthwise.{channels_gradient,convolve_channels,inside,kernels_gradient,lay_out,sum_up}",
        "DepthwiseConvolution",
        "num_output: 3 kernel_h: 2 kernel_w: 5 pad_h: 0 pad_w: 3 stride_h: 1 stride_w: 2 dilation: 2",
        (2, 3, 24, 53),
    ),
    "tiles": convolution(
        "tiled_loops.*", "Convolution", "num_output: 9 kernel_h: 3 kernel_w: 2 pad: 1 stride: 2", (3, 4, 11, 17)
    ),
    "tiles in groups": convolution(
        "tiled_loops.[!p]*", "Convolution", "num_output: 12 kernel_size: 3 dilation: 2 group: 2", (1, 6, 13, 19)
    ),
    "tiles of pixels": convolution("tiled_loops.*", "Convolution", "num_output: 17 kernel_size: 1", (2, 5, 9, 14)),
    "winograd": convolution(WINOGRAD, "Convolution", "num_output: 5 kernel_size: 3 pad: 1", (2, 3, 13, 17), single=True),
    "winograd of 5x5 in strides": convolution(
        WINOGRAD, "Convolution", "num_output: 6 kernel_size: 5 stride: 2 pad: 2 group: 2", (2, 4, 22, 25), single=True
    ),
    "winograd with factors": Entry(kept_factors, "epilogue.scale_shift_relu winograd_loops.*", True),
    "epilogues": Entry(epilogues, "epilogue.*"),
    "few windows": Entry(few_windows, "gradients.add_columns"),
    "deformable": Entry(
        layer(
            "type: 'DeformableConvolution' deformable_convolution_param { num_output: 4 kernel_size: 3 pad: 1 stride: 2"
            " deformable_group: 2 }",
            eighths(2, 4, 7, 9),
            eighths(2, 36, 4, 5),
        ),
        "deformed.*",
    ),
    "modulated": Entry(
        layer(
            "type: 'ModulatedDeformableConvolution'"
            " modulated_deformable_convolution_param { num_output: 4 kernel_size: 3 pad: 1 }",
            eighths(2, 4, 5, 6),
            eighths(2, 18, 5, 6),
            eighths(2, 9, 5, 6),
        ),
        "deformed.*",
    ),
    "ROIPooling": Entry(rois("ROIPooling", "pooled_h: 2 pooled_w: 3"), "roi_bin_maxima.backward_by_definition"),
    "ROIAlign max": Entry(
        rois("ROIAlign", "pooled_h: 2 pooled_w: 3"),
        "channel_blocks.read_pixels roi_align_max.*",
    ),
    "ROIAlign mean": Entry(
        rois("ROIAlign", "pooled_h: 2 pooled_w: 3 pool: AVE"),
        "channel_blocks.{read_pixels,write_place} roi_align_mean.* samples.list_pixels",
    ),
    "ROIAlign of two samples": Entry(
        rois("ROIAlign", "pooled_h: 3 pooled_w: 2 sampling_ratio: 2 aligned: true"),
        "channel_blocks.{read_pixels,write_place} roi_align_mean.* samples.list_pixels",
    ),
    "PSROIPooling": Entry(
        rois("PSROIPooling", "output_dim: 3 group_size: 2"),
        "channel_blocks.{read_place,write_place} psroi_pooling.*",
    ),
    "PSROIAlign": Entry(
        rois("PSROIAlign", "output_dim: 3 group_size: 2 sample_num: 3"),
        "channel_blocks.{read_place,write_place} psroi_align.* samples.list_pixels",
    ),
    "DeformablePSROIPooling": Entry(
        layer(
            "type: 'DeformablePSROIPooling' deformable_psroi_pooling_param { spatial_scale: 0.5 output_dim: 3 group_size: 2"
            " pooled_size: 2 part_size: 2 sample_per_part: 3 trans_std: 0.25 }",
            MAPS,
            ROIS,
            eighths(5, 2, 2, 2),
        ),
        "deformable_psroi_pooling.*",
    ),
    "maxima": Entry(
        layer(POOLING.format("kernel_size: 3 stride: 2 pad: 1"), distinct(2, 3, 9, 41), backward=False),
        "pooling_methods.max_pool",
    ),
    "maxima and their places": Entry(
        layer(POOLING.format("kernel_h: 5 kernel_w: 2"), distinct(2, 3, 9, 41), tops=2),
        "pooling_methods.{add_at_places,max_pool_places}",
    ),
    "averages": Entry(
        layer(POOLING.format("pool: AVE kernel_size: 3 stride: 2 pad: 1"), eighths(2, 3, 9, 41)), "pooling_methods.ave_pool"
    ),
    "maxima of wide windows": Entry(
        layer(POOLING.format("kernel_h: 9 kernel_w: 12 stride: 3 pad: 2"), distinct(2, 3, 11, 41), backward=False),
        "pooling_methods.{max_pool,pool_row}",
    ),
    "averages of wide windows": Entry(
        layer(POOLING.format("pool: AVE kernel_h: 2 kernel_w: 12 stride: 1 pad: 1"), eighths(2, 3, 5, 41)),
        "pooling_methods.{ave_pool,pool_row}",
    ),
    "averages of whole maps": Entry(
        layer(POOLING.format("pool: AVE global_pooling: true"), eighths(2, 3, 9, 11)), "pooling_methods.ave_pool_one"
    ),
    "upsample": Entry(
        layer("type: 'Upsample' upsample_param { upsample_h: 7 upsample_w: 9 }", eighths(2, 3, 3, 4), MASK),
        "unpooled.*",
    ),
    "LRN": Entry(layer(LRN.format(5, "ACROSS_CHANNELS"), eighths(2, 7, 5, 11)), "lrn.strips_*"),
    "LRN within": Entry(
        layer(LRN.format(3, "WITHIN_CHANNEL"), eighths(2, 3, 7, 11)),
        "lrn.{_add_neighbours,_sum_squares,maps_backward,maps_forward}",
    ),
    "softmax": Entry(layer("type: 'Softmax'", eighths(3, 5, 7)), "softmax.softmax_lines"),
    "softmax of lines": Entry(layer("type: 'Softmax'", eighths(3, 45)), "softmax.softmax_lines"),
    "sum": Entry(
        layer("type: 'Eltwise' eltwise_param { coeff: 2 coeff: -0.5 }", eighths(2, 3, 4, 5), eighths(2, 3, 4, 5, seed=1)),
        "eltwise.add_two",
    ),
    "copies": Entry(rearranged, "strided_copy.copy_strided"),
    "interpolation": Entry(
        layer("type: 'Interp' interp_param { height: 47 width: 91 pad_beg: -1 }", eighths(1, 2, 6, 8)),
        "interp.{interpolate,interpolate_backward}",
    ),
    "shrinking": Entry(
        layer("type: 'Interp' interp_param { height: 11 width: 13 }", eighths(2, 3, 23, 30)), "interp.interpolate"
    ),
    "flow": Entry(maps_of_flow("ZERO"), "flow_warp.*"),
    "correlation": Entry(layer(CORRELATION, eighths(2, 3, 10, 12), eighths(2, 3, 10, 12, seed=1)), "correlation.*"),
    "lattice": Entry(filtered, "permutohedral.*"),
    "suppression": Entry(suppressed, "nms.suppress"),
    "decoding": Entry(decoded, "box_codes.decode_all"),
    "detections": Entry(detections, "detection_rows.* nms.suppress"),
}


@lru_cache(maxsize=1)
def all_loops() -> frozenset[str]:
    rooms = minicaffe.layers, minicaffe.compiled
    modules = [module for room in rooms for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")]
    values = [value for module in modules for value in vars(importlib.import_module(module.name)).values()]
    found = (name_of(value) for value in values if isinstance(value, Loop))
    return frozenset(name for name in found if not name.startswith("worker_sync."))


def names(entry: Entry) -> set[str]:
    """Those that its patterns mean: a.{b,c} is a.b and a.c."""
    patterns = [
        f"{module}.{name}"
        for module, _, rest in (word.partition(".") for word in entry.loops.split())
        for name in rest.strip("{}").split(",")
    ]
    return {one for one in all_loops() if any(fnmatchcase(one, pattern) for pattern in patterns)}


@pytest.fixture(params=ENTRIES)
def entry(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Entry:
    chosen = ENTRIES[request.param]
    monkeypatch.setenv("MINICAFFE_CONV", "winograd" if chosen.single else "direct")
    return chosen


def by_numpy(entry: Entry) -> list[Array]:
    with kernels.using("numpy"):
        return entry.run(np.float64)


def expected(entry: Entry) -> list[Array]:
    return by_numpy(entry) if entry.defined is None else entry.defined()


def check(found: Sequence[Array], wanted: Sequence[Array], close: float) -> None:
    for array, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(array, right, rtol=close, atol=close * max(1, np.abs(right).max(initial=0)))


@pytest.mark.parametrize("entry", [name for name, entry in ENTRIES.items() if entry.defined], indirect=True)
@pytest.mark.parametrize(("dtype", "close"), [(np.float32, 1e-5), (np.float64, 1e-10)])
@pytest.mark.parametrize("threads", [1, 3])
def test_numpy_gives_what_the_definition_says(entry: Entry, dtype: type, close: float, threads: int) -> None:
    set_num_threads(threads)
    with kernels.using("numpy"):
        check(entry.run(dtype), expected(entry), close)


def test_the_definitions_give_what_numpy_does(entry: Entry) -> None:
    with loops_in_python() as ran:
        found = entry.run(np.float32 if entry.single else np.float64)
    assert ran == names(entry)
    check(found, expected(entry), 1e-5 if entry.single else 1e-10)


def test_machine_code_gives_what_numpy_does(entry: Entry) -> None:
    results = []
    with kernels.using("numba"):
        for threads in (1, 3):
            set_num_threads(threads)
            results.append(entry.run(np.float32))
    check(results[0], expected(entry), 1e-5)
    for one, other in zip(*results, strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.slow
def test_machine_code_of_float64_takes_long_to_compile(entry: Entry) -> None:
    with kernels.using("numba"):
        found = entry.run(np.float32 if entry.single else np.float64)
    check(found, expected(entry), 1e-5 if entry.single else 1e-10)


def test_every_loop_of_the_layers_is_in_the_table() -> None:
    assert all_loops() == set().union(*map(names, ENTRIES.values()))
