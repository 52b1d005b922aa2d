"""Functions that read a net change nothing of it: blobs, gradients, layers, random numbers, and what a later pass gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minicaffe
from minicaffe import TEST, TRAIN, Net, kernels, rng
from minicaffe.blob import Array
from minicaffe.compiled import jit
from minicaffe.data.images import load_image
from minicaffe.data.roidb import load_roidb
from minicaffe.data.settings import read_settings
from minicaffe.detection.detect import detect
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers.proposal.roi_data import RoIData
from minicaffe.porting.merge_bn import merge_net
from minicaffe.porting.torch_source import write_source
from minicaffe.tracing import net_state
from minicaffe.tracing.net_state import state_kept
from minicaffe.tracing.receptive_fields import receptive_field
from minicaffe.tracing.summary import memory_needs, summarize

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
SETTINGS = read_settings(SHAPES / "shapes.yml")
SMALL = """
layer { name: "in" type: "Input" top: "x" top: "cont" top: "rois" input_param {
  shape { dim: 2 dim: 3 dim: 8 dim: 10 } shape { dim: 2 dim: 1 } shape { dim: 3 dim: 5 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" top: "mask" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "lrn" type: "LRN" bottom: "pool" top: "lrn" }
layer { name: "drop" type: "Dropout" bottom: "lrn" top: "drop" }
layer { name: "roi" type: "ROIPooling" bottom: "drop" bottom: "rois" top: "roi"
  roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 } }
layer { name: "flat" type: "Flatten" bottom: "lrn" top: "flat" }
layer { name: "steps" type: "Reshape" bottom: "flat" top: "steps" reshape_param { shape { dim: 2 dim: 1 dim: -1 } } }
layer { name: "lstm" type: "LSTM" bottom: "steps" bottom: "cont" top: "h"
  recurrent_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "a" type: "Reduction" bottom: "roi" top: "a" loss_weight: 1 reduction_param { operation: SUMSQ } }
layer { name: "b" type: "Reduction" bottom: "h" top: "b" loss_weight: 1 reduction_param { operation: SUMSQ } }
layer { name: "mask" type: "Silence" bottom: "mask" }
"""


def small() -> Net:
    """Return a net of layers that keep buffers for backward, after a forward."""
    minicaffe.set_random_seed(3)
    net = Net(parse_net(SMALL), TRAIN)
    net.blobs["x"].data[...] = np.random.default_rng(1).standard_normal((2, 3, 8, 10))
    net.blobs["cont"].data[...] = [[0], [1]]
    net.blobs["rois"].data[...] = [[0, 0, 0, 9, 7], [1, 2, 1, 7, 7], [1, 0, 3, 9, 4]]
    net.forward()
    return net


def trained() -> Net:
    """Return the shapes R-FCN after a forward in training, with 64 rois."""
    minicaffe.set_random_seed(3)
    net = Net(SHAPES / "rfcn" / "train.prototxt", TRAIN, settings=SETTINGS)
    reader = net.layers[0]
    assert isinstance(reader, RoIData)
    reader.set_roidb(load_roidb(SHAPES / "scene.json")[0])
    net.forward()
    return net


def detected() -> Net:
    """Return the shapes R-FCN after detect, which gave another number of rois than summarize assumes."""
    net = Net(SHAPES / "rfcn" / "test.prototxt", TEST, weights=SHAPES / "rfcn" / "shapes_rfcn.caffemodel", settings=SETTINGS)
    detect(net, load_image(SHAPES / "scene.png"), settings=SETTINGS)
    return net


def sparing() -> Net:
    """Return a net that has freed its inner blobs."""
    net = Net(SHAPES / "rfcn" / "test.prototxt", TEST, settings=SETTINGS, keep="outputs")
    net.blobs["im_info"].data[...] = [[240, 320, 1]]
    net.forward()
    return net


NETS = {"small": small, "trained": trained, "detected": detected, "sparing": sparing}
READERS: dict[str, Callable[[Net, Path], Any]] = {
    "summarize": lambda net, _: summarize(net),
    "summarize of 7 rois": lambda net, _: summarize(net, 7),
    "memory_needs": lambda net, _: memory_needs(net),
    "receptive_field": lambda net, _: receptive_field(net, next(n for n in net.blobs if n in ("conv8", "pool")), 1, 2),
    "drawing": lambda net, path: minicaffe.draw.draw_net_to_file(net.param, str(path / "net.svg")),
    "repr": lambda net, _: (repr(net), net._repr_html_()),
    "save": lambda net, path: net.save(str(path / "net.caffemodel")),
}
EXPORTS: dict[str, Callable[[Net, Path], Any]] = {
    "export_onnx": lambda net, path: minicaffe.export_onnx(net, path / "net.onnx"),
    "write_source": lambda net, path: write_source(net, path / "made.py"),
    "merge_net": lambda net, _: merge_net(net),
}


def memories(net: Net) -> Iterator[tuple[str, Any]]:
    for name, blob in [*net.blobs.items(), *((f"weight {i}", blob) for i, blob in enumerate(net.learnable_params))]:
        for part in ("data", "diff"):
            memory = getattr(blob, f"{part}_memory")
            yield f"{part} {name}", (blob, part, memory)


def numbers(net: Net) -> dict[str, Array]:
    """Return copies of all numbers that the net holds."""
    found = {}
    for name, (blob, part, memory) in memories(net):
        if memory.on_host and not memory.freed_message:
            found[name] = getattr(blob, f"read_{part}")().copy()
    return found


def check_unchanged(net: Net, read: Callable[[], Any]) -> None:
    shapes = {name: blob.shape for name, blob in net.blobs.items()}
    before, held = numbers(net), {name: id(memory) for name, (_, _, memory) in memories(net)}
    freed = {name: memory.freed_message for name, (_, _, memory) in memories(net)}
    attributes = [dict(vars(layer)) for layer in net.layers]
    drawn = rng.generator().bit_generator.state
    read()
    assert {name: blob.shape for name, blob in net.blobs.items()} == shapes
    assert {name: id(memory) for name, (_, _, memory) in memories(net)} == held
    assert {name: memory.freed_message for name, (_, _, memory) in memories(net)} == freed
    after = numbers(net)
    assert before.keys() <= after.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array, err_msg=name)
    for layer, kept in zip(net.layers, attributes, strict=True):
        assert vars(layer).keys() == kept.keys(), layer.name
        assert all(vars(layer)[key] is value for key, value in kept.items()), layer.name
    assert rng.generator().bit_generator.state == drawn


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("reader", READERS)
def test_a_function_that_reads_a_net_changes_nothing(name: str, reader: str, tmp_path: Path) -> None:
    net = NETS[name]()
    check_unchanged(net, lambda: READERS[reader](net, tmp_path))


@pytest.mark.parametrize("export", EXPORTS)
def test_an_export_changes_nothing(export: str, tmp_path: Path) -> None:
    if export == "export_onnx":
        pytest.importorskip("onnx", reason="onnx (the extra onnx) is not installed")
    net = detected()
    check_unchanged(net, lambda: EXPORTS[export](net, tmp_path))


@pytest.mark.parametrize("name", ["small", "trained"])
@pytest.mark.parametrize("rois", [None, 5, 300])
def test_backward_after_a_summary_gives_the_same_gradients(name: str, rois: int | None) -> None:
    """Buffers that forward filled for backward, such as the places of maxima, are still there."""
    plain, asked = NETS[name](), NETS[name]()
    found = summarize(asked, rois)
    assert found.layers
    plain.backward()
    asked.backward()
    mine, other = numbers(asked), numbers(plain)
    assert mine.keys() == other.keys() and any(key.startswith("diff weight") and other[key].any() for key in other)
    for key, array in other.items():
        np.testing.assert_array_equal(mine[key], array, err_msg=key)


def test_the_summary_is_of_the_assumed_rois() -> None:
    net = detected()
    assert net.blobs["rois"].shape != (7, 5)
    layers = {layer.name: layer for layer in summarize(net, 7).layers}
    assert layers["proposal"].shapes == [(7, 5)] and layers["psroipooled_cls_rois"].shapes == [(7, 4, 3, 3)]


def test_the_summary_is_of_the_current_input_shapes() -> None:
    net = detected()
    before = net.blobs["conv1"].shape
    net.blobs["data"].reshape(1, 3, 120, 90)
    layers = {layer.name: layer for layer in summarize(net).layers}
    assert layers["conv1"].shapes == [(1, 16, 60, 45)]
    assert net.blobs["conv1"].shape == before != (1, 16, 60, 45)  # until the next forward


def test_a_summary_leaves_what_all_nets_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """The providers of kernels that it is the first to load, and loops that are compiled meanwhile."""
    text = """input: "x" input_shape { dim: 2 dim: 3 dim: 5 dim: 6 }
    layer { name: "pool" type: "Pooling" bottom: "x" top: "y" top: "mask" pooling_param { kernel_size: 2 stride: 2 } }
    layer { name: "up" type: "Upsample" bottom: "y" bottom: "mask" top: "z" upsample_param { upsample_h: 7 upsample_w: 9 } }"""
    net = Net(parse_net(text), TEST)
    made = [kernel for layer in net.layers for pass_ in layer.uses_kernels for kernel in pass_]
    assert len(made) == 4
    for kernel in made:
        monkeypatch.setattr(kernel, "_provider", None)
    net.layers[1].loop = loop = jit.Loop("T[::1]", np.sin)  # type: ignore[attr-defined]
    with state_kept(net):
        for kernel in made:
            kernel._provider = kernels._Provider(kernel.by_numpy, (), ())
        loop._entries[np.dtype(np.float32)] = loop._dispatcher = "compiled"
    assert all(kernel._provider is not None for kernel in made)
    assert loop._dispatcher == "compiled" and loop._entries


@pytest.mark.parametrize("make", [small, trained, detected])
def test_what_is_put_back_belongs_to_one_net(make: Callable[[], Net]) -> None:
    """Two nets have only constants in common: settings, the fork, and members of enums."""
    nets = make(), make()
    walked: list[dict[int, Any]] = [{}, {}]
    for net, seen in zip(nets, walked):
        net_state._keep([net.nodes, list(net.blobs.values()), net.layers], [], seen)
    shared = [walked[0][key] for key in walked[0].keys() & walked[1].keys()]
    holders = [value for value in shared if hasattr(value, "__dict__") and net_state._is_part(value)]
    constants = [value for value in holders if isinstance(value, Enum) or is_dataclass(value)]
    assert constants and len(constants) == len(holders), set(map(type, holders))
    for value in constants:
        if is_dataclass(value):
            with pytest.raises(FrozenInstanceError):
                setattr(value, fields(value)[0].name, 1)
    fixed = {id(vars(value)) for value in constants}
    assert [value for value in shared if isinstance(value, list | dict) and id(value) not in fixed] == []


def test_state_is_kept_if_the_block_fails() -> None:
    net = small()

    def fail() -> None:
        with pytest.raises(ZeroDivisionError), state_kept(net):
            net.blobs["x"].reshape(5, 3, 16, 18)
            net.blobs["cont"].reshape(2, 1)
            net.layer_dict["conv"].reshape_pass(net.nodes[1].bottoms, net.nodes[1].tops)
            net.layers[1].something = 1
            assert net.blobs["conv"].shape == (5, 4, 16, 18)
            raise ZeroDivisionError

    check_unchanged(net, fail)
