"""Tracer: what it keeps of a run, against the run itself; its hooks; failures; the document it becomes."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from minicaffe import TEST, TRAIN, LayerError, Net, Tracer, register, set_random_seed
from minicaffe.blob import MemoryState
from minicaffe.formats.prototxt import parse_net
from minicaffe.layer import Layer
from minicaffe.layers import CATALOGUE
from minicaffe.layers.roi.roi_pooling import ROIPooling
from minicaffe.tracing.explanations import explain
from minicaffe.tracing.trace import NOT_FINITE, SAMPLED, Step, colours, histogram, on_scale, shot, shrunk, statistics, tiles
from minicaffe.tracing.trace_facts import bytes_in_use
from minicaffe.tracing.trace_page import document, page

CHAIN = """name: "chain"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 6 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "double" type: "Power" bottom: "conv" top: "conv" power_param { scale: 2 } }
layer { name: "left" type: "Power" bottom: "conv" top: "left" power_param { shift: 1 } }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "Reduction" bottom: "ip" top: "loss" loss_weight: 1 }
"""
ROIS = """name: "rois"
input: "data" input_shape { dim: 1 dim: 8 dim: 9 dim: 7 }
input: "rois" input_shape { dim: 3 dim: 5 }
layer { name: "pool" type: "ROIPooling" bottom: "data" bottom: "rois" top: "pool"
  roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 } }
layer { name: "align" type: "ROIAlign" bottom: "data" bottom: "rois" top: "align"
  roi_align_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 sampling_ratio: 2 } }
layer { name: "align_max" type: "ROIAlign" bottom: "data" bottom: "rois" top: "align_max"
  roi_align_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 } }
layer { name: "ps" type: "PSROIPooling" bottom: "data" bottom: "rois" top: "ps"
  psroi_pooling_param { output_dim: 2 group_size: 2 spatial_scale: 0.5 } }
layer { name: "ps_align" type: "PSROIAlign" bottom: "data" bottom: "rois" top: "ps_align"
  psroi_align_param { output_dim: 2 group_size: 2 spatial_scale: 0.5 sample_num: 2 } }
"""


def made(text: str, phase: int = TEST, **options: Any) -> Net:
    set_random_seed(1)
    net = Net(parse_net(text), phase, **options)
    random = np.random.default_rng(2)
    for name in net.inputs:
        net.blobs[name].data[...] = random.standard_normal(net.blobs[name].shape)
    if "rois" in net.inputs:
        net.blobs["rois"].data[...] = [[0, 1, 2, 9, 12], [0, -6, -5, 3, 30], [0, 4, 4, 4, 4]]
    return net


def steps_of(tracer: Tracer, kind: str) -> dict[str, Any]:
    """The steps of one kind by layer name."""
    trace = tracer.trace
    return {trace.layers[step.layer].name: step for step in trace.steps if step.kind == kind}


def read(reference: dict[str, Any], raw: bytes) -> np.ndarray:
    """What a reference of the document stands for."""
    dtype = np.dtype("<" + reference["dtype"])
    return np.frombuffer(raw, dtype, int(np.prod(reference["shape"])), reference["at"]).reshape(reference["shape"])


# The run.


def test_steps_follow_caffes_order() -> None:
    with Tracer() as tracer:
        net = Net(parse_net(CHAIN), TEST, watch=tracer.watch)
        net.forward()
        net.backward()
    names = [layer.name for layer in net.layers]
    made_steps = [(kind, i) for i in range(len(names)) for kind in ("setup", "reshape")]
    forward = [(kind, i) for i in range(len(names)) for kind in ("reshape", "forward")]
    backward = [("backward", i) for i in reversed(range(len(names))) if net.nodes[i].needs_backward]
    steps = tracer.trace.steps
    assert [(step.kind, step.layer) for step in steps] == made_steps + forward + backward
    assert all(step.ms is not None and step.ms >= 0 for step in steps)
    assert steps[-1].bytes > steps[len(made_steps)].bytes > 0
    assert steps[3].shapes == [(2, 4, 6, 4)]


@pytest.mark.parametrize("keep", ["all", "outputs"])
def test_a_step_s_bytes_are_those_of_all_blobs(keep: str) -> None:
    def of_all(step: Step) -> None:
        assert net is not None
        blobs = [blob for node in net.nodes for blob in (*node.tops, *node.layer.blobs)]
        found.append((step.bytes, bytes_in_use(blobs)))

    net, found = made(CHAIN, keep=keep), list[tuple[int, int]]()
    with Tracer(net, backward=keep == "all", on_step=of_all):
        for items in (2, 3):
            net.blobs["data"].reshape(items, 3, 8, 6)
            net.forward()
            if keep == "all":
                net.backward()
    assert len(found) > 2 * len(net.nodes)
    assert [ours for ours, _ in found] == [theirs for _, theirs in found]


def test_a_net_made_before_has_setup_steps_without_times() -> None:
    net = made(CHAIN)
    with Tracer(net) as tracer:
        net.forward()
    assert {step.ms for step in tracer.trace.steps if step.kind == "setup"} == {None}
    assert any("LayerSetUp is not timed" in note for note in tracer.trace.notes)


def test_in_place_chains_keep_what_was_there_after_each_layer() -> None:
    net = made(CHAIN)
    seen: dict[str, np.ndarray] = {}
    net.after_forward(lambda i: seen.update({net.layers[i].name: net.nodes[i].tops[0].data.copy()}))
    with Tracer(net) as tracer:
        net.forward()
    steps = steps_of(tracer, "forward")
    for name in ("conv", "relu", "double"):
        blob = steps[name].blobs[0]
        assert (blob.name, blob.role, blob.part) == ("conv", "top", "data")
        np.testing.assert_array_equal(blob.shot.values, seen[name])
        assert blob.shot.statistics.mean == pytest.approx(seen[name].mean(dtype=np.float64))
    assert steps["relu"].blobs[0].shot.statistics.min == 0 > steps["conv"].blobs[0].shot.statistics.min
    facts = {layer.name: layer for layer in tracer.trace.layers}
    assert [facts[name].in_place for name in ("conv", "relu", "double")] == [False, True, True]
    assert facts["relu"].top_bytes == 0 < facts["conv"].top_bytes


def test_splits_are_layers_and_share_their_memory() -> None:
    net = made(CHAIN)
    with Tracer(net) as tracer:
        net.forward()
    split = next(layer for layer in tracer.trace.layers if layer.is_split)
    assert split.type == "Split"
    assert len(split.tops) == 2
    assert split.top_bytes == 0


def test_backward_keeps_the_gradients() -> None:
    net = made(CHAIN)
    with Tracer(net, backward=True) as tracer:
        net.forward()
        net.clear_param_diffs()
        net.backward()
    steps = steps_of(tracer, "backward")
    blob = steps["ip"].blobs[0]
    assert (blob.role, blob.part) == ("bottom", "diff")
    facts = {layer.name: layer for layer in tracer.trace.layers}
    for name in ("conv", "ip"):
        diff = facts[name].params[0].diff
        assert diff is not None
        assert diff.statistics.max == pytest.approx(float(net.params[name][0].diff.max()))
    assert [param.name for param in facts["conv"].params] == ["weight", "bias"]


def test_without_backward_no_backward_hook_is_there() -> None:
    net = made(CHAIN)
    with Tracer(net, backward=False) as tracer:
        net.forward_backward()
    assert not steps_of(tracer, "backward")


def test_a_second_pass_replaces_the_first() -> None:
    net = made(CHAIN)
    with Tracer(net) as tracer:
        net.forward_backward()
        net.blobs["data"].data[...] = 3
        net.forward()
    steps = [step for step in tracer.trace.steps if step.kind == "forward"]
    assert len(steps) == len(net.layers)
    assert steps[0].blobs[0].shot.statistics.max == 3
    assert not steps_of(tracer, "backward")
    assert "2 forward passes ran: the last is shown" in tracer.trace.notes


def test_part_of_a_net() -> None:
    net = made(CHAIN)
    with Tracer(net) as tracer:
        net.forward(end="relu")
    assert list(steps_of(tracer, "forward")) == ["data", "conv", "relu"]
    assert len(tracer.trace.layers) == len(net.layers)


def test_hooks_are_gone_after_the_block_and_after_an_error() -> None:
    net = made(CHAIN)
    with Tracer(net):
        assert any(net._hooks.values())
    assert not any(net._hooks.values())
    with pytest.raises(ZeroDivisionError), Tracer(net):
        raise ZeroDivisionError
    assert not any(net._hooks.values())


def test_the_traced_run_computes_the_same() -> None:
    plain, traced = made(CHAIN), made(CHAIN)
    plain.forward_backward()
    with Tracer(traced):
        traced.forward_backward()
    for name in plain.blobs:
        np.testing.assert_array_equal(plain.blobs[name].data, traced.blobs[name].data)
        np.testing.assert_array_equal(plain.blobs[name].diff, traced.blobs[name].diff)


def test_in_gpu_mode_too(device: str) -> None:
    plain, net = made(CHAIN), made(CHAIN)
    plain.forward_backward()
    seen: list[MemoryState] = []
    with Tracer(net) as tracer:
        net.after_forward(lambda i: seen.append(net.nodes[i].tops[0].data_state))
        net.forward_backward()
    for step in tracer.trace.steps:
        if step.kind == "forward" and tracer.trace.layers[step.layer].name in ("ip", "loss"):
            np.testing.assert_array_equal(step.blobs[0].shot.values, plain.blobs[step.blobs[0].name].data)
    assert MemoryState.HOST not in seen[1:] or device == "cpu"
    assert (tracer.trace.device == "cpu") == (device == "cpu")
    json.dumps(document(tracer.trace)[0], allow_nan=False)


def test_roi_layers_in_gpu_mode_too(device: str) -> None:
    net = made(ROIS)
    with Tracer(net) as tracer:
        net.forward()
    for layer in tracer.trace.layers:
        if layer.roi:
            np.testing.assert_array_equal(layer.roi.output, net.blobs[layer.name].data)
            assert layer.example.lines


def test_one_number_of_each_layer_is_explained() -> None:
    """Also of layers that overwrite what they read; as explain says it of the same number."""
    net = made(CHAIN)
    net.blobs["data"].data[...] = np.random.default_rng(3).standard_normal((2, 3, 8, 6))
    with Tracer(net) as tracer:
        net.forward_backward()
    shown = {layer.name: layer.example for layer in tracer.trace.layers if layer.covered and layer.example}
    assert {"conv", "relu", "double", "left", "ip"} <= set(shown)
    for name, example in shown.items():
        said = explain(net, name, example.at).text().splitlines()
        assert [line for line in said if "in place" not in line] == example.lines, name
    conv = net.blobs["conv"].data[0]  # after double
    assert shown["conv"].at[1:] == shown["double"].at[1:] == np.unravel_index(conv.argmax(), conv.shape)


def test_on_step_is_called_with_every_step() -> None:
    net, seen = made(CHAIN), []
    with Tracer(net, on_step=seen.append, tile_bytes=0) as tracer:
        net.forward()
    assert seen == [step for step in tracer.trace.steps if step.kind != "setup"]
    assert all(blob.shot.tiles is None and blob.shot.values is None for step in seen for blob in step.blobs)


# Numbers that are none.


def test_nan_and_infinity_are_counted_and_left_out_of_the_rest() -> None:
    net = made(CHAIN)
    net.blobs["data"].data[0, 0, 0, :3] = [np.nan, np.inf, -np.inf]
    with np.errstate(invalid="ignore"), Tracer(net) as tracer:
        net.forward()
    found = steps_of(tracer, "forward")["data"].blobs[0].shot
    assert (found.statistics.nan, found.statistics.inf) == (1, 2)
    assert sum(found.histogram.counts) == 2 * 3 * 8 * 6 - 3
    assert (found.tiles.pixels == NOT_FINITE).sum() == 3
    data, _ = document(tracer.trace)
    assert json.loads(json.dumps(data, allow_nan=False)) == data


@given(arrays(np.float32, st.tuples(*[st.integers(0, 5)] * 2), elements=st.floats(width=32)))
def test_statistics_of_any_array(array: np.ndarray) -> None:
    found = statistics(array)
    finite = array[np.isfinite(array)].astype(np.float64)
    assert found.count == array.size == finite.size + found.nan + found.inf
    assert found.nan == np.isnan(array).sum()
    assert found.zeros == pytest.approx((array == 0).mean() if array.size else 0)
    if finite.size:
        assert (found.min, found.max) == (finite.min(), finite.max())
        assert found.mean == pytest.approx(finite.mean(), rel=1e-6)
        assert found.std == pytest.approx(finite.std(), rel=1e-6, abs=1e-30)
    else:
        assert found.min is found.mean is found.max is found.std is None
    counted = histogram(array, found)
    assert (sum(counted.counts) if counted else 0) == finite.size


def test_an_array_of_one_value_and_a_large_one() -> None:
    flat = np.full(7, 2.5, np.float32)
    assert histogram(flat, statistics(flat)).counts[0] == 7
    large = np.arange(SAMPLED * 2 + 1, dtype=np.float32)
    counted = histogram(large, statistics(large))
    assert counted.every == 3
    assert sum(counted.counts) == len(large[::3])


# Maps.


def test_tiles_by_hand() -> None:
    """All maps of a blob are on one scale, on which 0 is."""
    maps = np.array([[[[0, 1], [2, 4]], [[5, 5], [5, 10]]]], np.float32)
    found = tiles(maps, 1000)
    assert found.pixels.tolist() == [[[0, 25], [51, 102]], [[127, 127], [127, 254]]]
    assert (found.low, found.high) == (0, 10)
    assert (found.channels, found.shrunk, found.per) == (2, 1, 1)


@pytest.mark.parametrize(
    ("values", "pixels", "low", "high"),
    [
        ([-1, 0, 3, np.nan], [85, 127, 254, 255], -3, 3),
        ([-4, 0, 3, -np.inf], [0, 127, 222, 255], -4, 4),
        ([-4, -2, -1, -3], [0, 127, 190, 64], -4, 0),
        ([0, 0, 0, 0], [0, 0, 0, 0], 0, 0),
        ([np.nan, np.inf, np.nan, np.nan], [255, 255, 255, 255], 0, 0),
        ([-1.7e308, 1.7e308, 0, 8.5e307], [0, 254, 127, 190], -1.7e308, 1.7e308),
    ],
)
def test_zero_has_one_place_on_the_scale(values: list[float], pixels: list[int], low: float, high: float) -> None:
    found, *scale = on_scale(np.array(values).reshape(1, 2, 2))
    assert found.ravel().tolist() == pixels
    assert scale == [low, high]
    finite = np.isfinite(values)
    rgb = colours(found, *scale).reshape(4, 3)
    assert (rgb[~finite] == (255, 0, 255)).all()
    assert (rgb[(np.array(values) == 0) & finite] <= 2).all(), "0 is black"
    assert all(rgb[i, 0] > rgb[i, 2] for i in range(4) if finite[i] and values[i] > 0), "positive values are orange"
    assert all(rgb[i, 2] > rgb[i, 0] for i in range(4) if finite[i] and values[i] < 0), "negative values are blue"


def test_large_maps_are_shrunk_and_paged_within_their_budget() -> None:
    maps = np.random.default_rng(0).standard_normal((1, 100, 61, 47)).astype(np.float32)
    found = tiles(maps, 20000)
    assert found.pixels.size <= 20000
    assert found.shrunk > 1
    assert len(found.pixels) < found.channels == 100


@pytest.mark.parametrize("channels, kept", [(40, 40), (50, 50), (51, 40), (100, 40)])
def test_a_few_maps_more_are_kept_where_these_are_all(channels: int, kept: int) -> None:
    maps = np.zeros((1, channels, 10, 6), np.float32)
    assert tiles(maps, 40 * 60).pixels.shape == (kept, 10, 6)


def test_shrinking_takes_means_of_blocks() -> None:
    maps = np.arange(15.0).reshape(1, 3, 5)
    expected = [[[3, 5, 6.5], [10.5, 12.5, 14]]]
    np.testing.assert_allclose(shrunk(maps, 2), expected)


def test_weights_are_one_tile_for_each_input_of_each_output() -> None:
    weight = np.arange(4 * 3 * 2 * 5, dtype=np.float32).reshape(4, 3, 2, 5)
    found = tiles(weight, 10000, weights=True)
    assert found.pixels.shape == (12, 2, 5)
    assert (found.per, found.low, found.high) == (3, 0, 119)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1, 1), (0, 3, 4, 5), (2, 3, 4), (1, 0, 4, 5)])
def test_what_has_no_maps_has_no_tiles(shape: tuple[int, ...]) -> None:
    assert tiles(np.zeros(shape, np.float32), 1000) is None
    assert shot(np.zeros(shape, np.float32), 1000).values is not None


# ROI layers.


def test_roi_layers_keep_their_map_geometry_and_output() -> None:
    net = made(ROIS)
    net.force_backward()
    with Tracer(net) as tracer:
        net.forward()
        for name in net.outputs:
            net.blobs[name].diff[...] = 1
        net.backward()
    layers = {layer.name: layer for layer in tracer.trace.layers if layer.roi}
    rois = {name: layer.roi for name, layer in layers.items()}
    assert {name: roi.kind for name, roi in rois.items()} == {
        "pool": "max_bins", "align": "mean_samples", "align_max": "max_samples",
        "ps": "psroi_bins", "ps_align": "psroi_samples",
    }  # fmt: skip
    for name, roi in rois.items():
        np.testing.assert_array_equal(roi.map, net.blobs["data"].data[0])
        np.testing.assert_array_equal(roi.output, net.blobs[name].data)
        np.testing.assert_array_equal(roi.rois, net.blobs["rois"].data)
        np.testing.assert_array_equal(roi.dy, net.blobs[name].diff)
        assert roi.dx.shape == (8, 9, 7)
        assert roi.dx.any()
        shown = layers[name].example
        assert any("roi 0" in line for line in shown.lines)
        assert shown.lines == explain(net, name, roi=0, channel=0, bin=[n // 2 for n in roi.pooled]).text().splitlines()


def test_a_roi_layer_of_the_users_is_traced_without_its_bins() -> None:
    """Nobody knows what a class derived from ours reads."""

    class Mine(ROIPooling):
        def forward_cpu(self, bottom: Any, top: Any) -> None:
            top[0].data[...] = 0

    register("MyPooling", Mine)
    net = made(ROIS.replace('"ROIPooling"', '"MyPooling"'))
    with Tracer(net) as tracer:
        net.forward()
    assert [layer.name for layer in tracer.trace.layers if layer.roi] == ["align", "align_max", "ps", "ps_align"]


def test_the_bins_of_a_trace_give_the_layers_maxima() -> None:
    net = made(ROIS)
    with Tracer(net) as tracer:
        net.forward()
    data, raw = document(tracer.trace)
    roi = next(layer["roi"] for layer in data["layers"] if layer["name"] == "pool")
    x, y = read(roi["map"], raw), read(roi["output"], raw)
    bins = {key: read(reference, raw) for key, reference in roi["bins"].items()}
    for r, c, i, j in np.ndindex(y.shape):
        cells = x[c, bins["hstart"][r, i] : bins["hend"][r, i], bins["wstart"][r, j] : bins["wend"][r, j]]
        assert y[r, c, i, j] == (cells.max() if cells.size else 0)


def test_the_steps_to_the_bins_are_there_before_and_after_rounding_and_clipping() -> None:
    net = made(ROIS)
    with Tracer(net) as tracer:
        net.forward()
    data, raw = document(tracer.trace)
    pool, align, align_max, ps, ps_align = (layer["roi"] for layer in data["layers"] if layer["roi"])
    # roi 1 is -6, -5, 3, 30 in pixels, the map 9 x 7 cells of 2 x 2 pixels
    assert read(pool["start"], raw)[1].tolist() == [-3, -2.5, 1.5, 15]
    assert read(pool["rounded"], raw)[1].tolist() == [-3, -3, 2, 15]
    assert read(pool["size"], raw)[1].tolist() == [9.5, 2]
    bins = {key: read(reference, raw)[1].tolist() for key, reference in pool["bins"].items()}
    assert (bins["raw_hstart"], bins["raw_hend"]) == ([-3, 6], [7, 16])
    assert (bins["hstart"], bins["hend"]) == ([0, 6], [7, 9])
    assert (bins["raw_wstart"], bins["wstart"]) == ([-3, -1, 1], [0, 0, 1])
    assert read(ps["start"], raw)[1].tolist() == [-3, -2.5, 1.5, 15]
    assert read(ps["rounded"], raw)[1].tolist() == [-3, -2.5, 2, 15.5]
    assert read(align["start"], raw)[1].tolist() == read(align_max["start"], raw)[1].tolist() == [-3, -2.5, 1.5, 15]
    assert read(align["size"], raw)[1].tolist() == [8.75, 1.5]
    assert read(align_max["size"], raw)[1].tolist() == [9.25, pytest.approx(5.5 / 3)]
    assert align["rounded"] is None is align["bins"]
    assert read(align["h"], raw).shape[:2] == (3, 2)
    assert read(ps_align["per_bin"], raw).tolist() == [4, 4, 4]


# Failures.


class FailsHere(Layer):
    """Fails in its setup, reshape, forward or backward, whichever its param_str says."""

    type = "FailsHere"

    def setup(self, bottom: Any, top: Any) -> None:
        self._fail("setup")

    def reshape(self, bottom: Any, top: Any) -> None:
        self._fail("reshape")
        top[0].reshape(*bottom[0].shape)

    def forward_cpu(self, bottom: Any, top: Any) -> None:
        self._fail("forward")

    def backward_cpu(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        self._fail("backward")

    def _fail(self, way: str) -> None:
        if self.param.python_param.param_str == way:
            raise self.error(f"no {way} today")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "FailsHere", FailsHere)  # type: ignore[arg-type]


def failing_net(way: str) -> str:
    bad = f'layer {{ name: "bad" type: "FailsHere" bottom: "conv" top: "bad" python_param {{ param_str: "{way}" }} }}'
    return CHAIN.replace('layer { name: "left"', bad + '\nlayer { name: "left"')


@pytest.mark.parametrize("way", ["setup", "reshape", "forward", "backward"])
def test_a_failure_ends_the_trace_at_its_layer(failing: None, way: str, tmp_path: Path) -> None:
    out = tmp_path / "trace.html"
    with pytest.raises(LayerError, match=f'"bad": no {way} today'), Tracer(path=out) as tracer:
        net = Net(parse_net(failing_net(way)), TEST, watch=tracer.watch)
        net.force_backward()
        net.forward()
        net.backward()
    trace = tracer.trace
    assert trace.error is not None
    assert (trace.layers[trace.error.layer].name, trace.error.way) == ("bad", way)
    assert "today" in trace.error.message
    done = {trace.layers[step.layer].name for step in trace.steps}
    assert {"data", "conv", "relu", "double"} <= done
    assert "bad" in out.read_text(encoding="utf-8")
    json.dumps(document(trace)[0], allow_nan=False)


def test_an_error_outside_any_layer_writes_no_page(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Tracer(made(CHAIN), tmp_path / "trace.html"):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_a_tracer_of_no_net_has_no_trace() -> None:
    with pytest.raises(ValueError, match="a Tracer without a net has no trace"):
        Tracer().trace  # noqa: B018


# The document and the page.


def test_the_page_holds_the_document(tmp_path: Path) -> None:
    net = made(CHAIN.replace('"chain"', '"a <b> & </script> net"'))
    with Tracer(net, tmp_path / "trace.html") as tracer:
        net.forward_backward()
    text = (tmp_path / "trace.html").read_text(encoding="utf-8")
    assert text == page(tracer.trace)
    assert "@@" not in text
    data, raw = document(tracer.trace)
    embedded = re.search(r'id="trace">(.*?)</script>', text, re.S)
    assert embedded
    assert json.loads(embedded[1]) == data
    packed = re.search(r'id="arrays">(.*?)</script>', text, re.S)
    assert packed
    assert gzip.decompress(base64.b64decode(packed[1])) == raw
    assert not re.search(r'(src|href)="https?:', text)


def test_values_in_the_document_are_the_nets() -> None:
    net = made(CHAIN, TRAIN)
    with Tracer(net) as tracer:
        net.forward()
    data, raw = document(tracer.trace)
    step = next(step for step in data["steps"] if step["kind"] == "forward" and data["layers"][step["layer"]]["name"] == "ip")
    np.testing.assert_array_equal(read(step["blobs"][0]["values"], raw), net.blobs["ip"].data)
    assert step["blobs"][0]["shape"] == step["shapes"][0] == [2, 5]
    assert data["net"] | {"file": ""} == {
        "name": "chain", "file": "", "phase": "TRAIN", "dtype": "float32", "weights": [], "device": "cpu",
        "gradient": "", "options": "",
    }  # fmt: skip


def test_in_place_layers_touch_in_the_graph_and_edges_lead_down() -> None:
    net = made(CHAIN)
    with Tracer(net) as tracer:
        net.forward()
    data, _ = document(tracer.trace)
    names = [layer["name"] for layer in data["layers"]]
    boxes = {names[node["layer"]]: node for node in data["graph"]["nodes"]}
    assert set(boxes) == set(names)
    for above, below in (("conv", "relu"), ("relu", "double")):
        assert boxes[below]["y"] == boxes[above]["y"] + boxes[above]["h"]
        assert boxes[below]["x"] == boxes[above]["x"]
    edges = [(names[edge["from"]], names[edge["to"]], edge["blob"]) for edge in data["graph"]["edges"]]
    assert ("data", "conv", "data") in edges
    assert ("double", "conv_double_0_split", "conv") in edges
    assert not any("relu" in edge[:2] for edge in edges)
    assert all(edge["points"][0][1] < edge["points"][-1][1] for edge in data["graph"]["edges"])


def test_float64_nets_too() -> None:
    net = made(CHAIN, dtype=np.float64)
    with Tracer(net) as tracer:
        net.forward_backward()
    assert document(tracer.trace)[0]["net"]["dtype"] == "float64"


def test_the_document_has_what_each_top_reads() -> None:
    """Numbers as of Reads, without the last ones that are the defaults; and which layers explain covers."""
    text = """layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 2 dim: 9 dim: 9 } } }
    layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
      convolution_param { num_output: 1 kernel_size: 3 stride: 2 pad_h: 1 pad_w: 0 } }
    layer { name: "norm" type: "MVN" bottom: "conv" top: "norm" }
    layer { name: "sum" type: "InnerProduct" bottom: "norm" top: "sum" inner_product_param { num_output: 2 } }"""
    with Tracer(Net(parse_net(text), TEST)) as tracer:
        assert tracer.net
        tracer.net.forward()
    layers = {layer["name"]: layer for layer in document(tracer.trace)[0]["layers"]}
    assert layers["data"]["reads"] == [[]]
    assert layers["conv"]["reads"] == [[{"rows": [2, 1, -1, 1], "columns": [2, 1, 0, 2], "statistics": False}]]
    assert layers["norm"]["reads"] == [[{"rows": [], "columns": [], "statistics": True}]]
    assert layers["sum"]["reads"] == [[None]]
    assert [layers[name]["covered"] for name in ("data", "conv", "sum")] == [False, True, True]
