"""Summaries: multiply-adds, parameters and memory counted by hand."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from minicaffe import TEST, TRAIN, Net, get_num_threads, set_num_threads
from minicaffe.blob import Blob, MemoryState
from minicaffe.data.settings import DetectionSettings, TestSettings, TrainSettings
from minicaffe.formats.prototxt import parse_net
from minicaffe.kernels import compiled
from minicaffe.layers.conv.convolution_products import panels_bytes
from minicaffe.layers.conv.convolve import BLOCK_BYTES
from minicaffe.mode import Phase
from minicaffe.net import Keep
from minicaffe.tracing.summary import summarize

TEXT = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 6 dim: 5 dim: 7 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 group: 2 } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "up" type: "Deconvolution" bottom: "conv" top: "up"
  convolution_param { num_output: 3 kernel_size: 2 stride: 2 } }
layer { name: "flat" type: "Flatten" bottom: "conv" top: "flat" }
layer { name: "ip" type: "InnerProduct" bottom: "flat" top: "ip" inner_product_param { num_output: 8 transpose: true } }
"""


def test_by_hand() -> None:
    """conv: (2, 4, 3, 5) of 3 channels x 9 taps; up: each of (2, 4, 3, 5) into 3 x 4; ip: (2, 8) of 60."""
    summary = summarize(Net(parse_net(TEXT), TEST))
    layers = {layer.name: layer for layer in summary.layers}
    assert {name: layer.multiply_adds for name, layer in layers.items() if layer.multiply_adds} == {
        "conv": 120 * 27,
        "up": 120 * 12,
        "ip": 16 * 60,
    }
    assert {name: layer.parameters for name, layer in layers.items() if layer.parameters} == {
        "conv": 4 * 27 + 4,
        "up": 4 * 12 + 3,
        "ip": 480 + 8,
    }
    assert layers["up"].shapes == [(2, 3, 6, 10)]
    assert summary.multiply_adds == 120 * 27 + 120 * 12 + 16 * 60
    assert summary.parameter_bytes == 4 * summary.parameters == 4 * (112 + 51 + 488)
    assert summary.blob_bytes == 4 * (420 + 120 + 360 + 16)


def test_says_which_way_loops_run(loops_way: str) -> None:
    net = Net(parse_net(TEXT), TEST)
    said = summarize(net).loops
    assert said.startswith("loops of 3 of 7 layers (Convolution, Deconvolution, ReLU): ")
    assert ("compiled by Numba" in said) == (loops_way == "numba") != ("computed by NumPy" in said)


def test_shared_weights_count_once() -> None:
    shared = 'bottom: "data" inner_product_param { num_output: 3 bias_term: false } param { name: "w" }'
    text = TEXT.splitlines()[1] + "".join(f'layer {{ name: "{n}" type: "InnerProduct" top: "{n}" {shared} }}\n' for n in "ab")
    assert summarize(Net(parse_net(text), TEST)).parameters == 3 * 6 * 5 * 7


def test_multiply_adds_of_recurrent_and_depthwise_layers() -> None:
    """An LSTM of 4 gates x 2 units on 6 steps of 3 streams: 5 inputs and 2 states a step, 7 static ones a stream."""
    text = """
    layer { name: "x" type: "Input" top: "x" top: "cont" top: "static" input_param {
      shape { dim: 6 dim: 3 dim: 5 } shape { dim: 6 dim: 3 } shape { dim: 3 dim: 7 } } }
    layer { name: "lstm" type: "LSTM" bottom: "x" bottom: "cont" bottom: "static" top: "h" recurrent_param { num_output: 2 } }
    layer { name: "maps" type: "Input" top: "maps" input_param { shape { dim: 1 dim: 4 dim: 5 dim: 6 } } }
    layer { name: "dw" type: "ConvolutionDepthwise" bottom: "maps" top: "dw"
      convolution_param { num_output: 4 kernel_size: 3 pad: 1 } }
    """
    layers = {layer.name: layer for layer in summarize(Net(parse_net(text), TEST)).layers}
    assert layers["lstm"].multiply_adds == 18 * 8 * (5 + 2) + 3 * 8 * 7
    assert layers["dw"].multiply_adds == 120 * 9


HEAD = """
layer { name: "in" type: "Input" top: "scores" top: "deltas" top: "info" top: "gt" input_param {
  shape { dim: 1 dim: 18 dim: 4 dim: 5 }
  shape { dim: 1 dim: 36 dim: 4 dim: 5 } shape { dim: 1 dim: 3 } shape { dim: 2 dim: 5 } } }
layer { name: "proposal" type: "Proposal" bottom: "scores" bottom: "deltas" bottom: "info" top: "rois"
  python_param { param_str: "'feat_stride': 16" } }
"""
SAMPLED = """
layer { name: "sample" type: "ProposalTarget" bottom: "rois" bottom: "gt"
  top: "some" top: "labels" top: "t" top: "in_w" top: "out_w"
  python_param { param_str: "'num_classes': 3" } }
layer { name: "ip" type: "InnerProduct" bottom: "some" top: "ip" inner_product_param { num_output: 8 } }
"""
BATCH = """
layer { name: "data" type: "RoIData" top: "data" top: "rois" top: "labels" top: "t" top: "in_w" top: "out_w"
  python_param { param_str: "'num_classes': 3" } }
layer { name: "ip" type: "InnerProduct" bottom: "rois" top: "ip" inner_product_param { num_output: 8 } }
"""


def roi_settings(train: dict[str, int], test: dict[str, int] | None = None) -> DetectionSettings:
    return DetectionSettings(TrainSettings(**train), TestSettings(**(test or {})))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "phase", "rois", "proposed", "sampled"),
    [
        (DetectionSettings(), TEST, None, 300, 128),
        (DetectionSettings(), TRAIN, None, 2000, 128),
        (DetectionSettings(), TRAIN, 50, 50, 50),
        (roi_settings({"batch_size": -1}), TRAIN, None, 2000, 2000),
        (roi_settings({"rpn_post_nms_top_n": 0, "batch_size": 7}), TRAIN, None, 300, 7),
        (roi_settings({}, {"rpn_post_nms_top_n": 40}), TEST, None, 40, 40),
    ],
)
def test_rois_of_proposal(settings: DetectionSettings, phase: Phase, rois: int | None, proposed: int, sampled: int) -> None:
    layers = {layer.name: layer for layer in summarize(Net(parse_net(HEAD + SAMPLED), phase, settings=settings), rois).layers}
    assert layers["proposal"].shapes == [(proposed, 5)]
    assert layers["proposal"].bytes == 4 * 5 * proposed
    assert layers["sample"].shapes[:3] == [(sampled, 5, 1, 1), (sampled, 1, 1, 1), (sampled, 12, 1, 1)]
    assert layers["ip"].multiply_adds == sampled * 5 * 8


@pytest.mark.parametrize(("batch", "rois", "sampled"), [(64, None, 64), (64, 10, 10), (-1, None, 300), (-1, 10, 10)])
def test_rois_of_a_roidb(batch: int, rois: int | None, sampled: int) -> None:
    settings = roi_settings({"batch_size": batch})
    layers = {layer.name: layer for layer in summarize(Net(parse_net(BATCH), TRAIN, settings=settings), rois).layers}
    assert layers["data"].shapes[:3] == [(2, 3, 600, 1000), (sampled, 5, 1, 1), (sampled, 1, 1, 1)]
    assert layers["ip"].multiply_adds == sampled * 5 * 8


# The peak of a run, against what the system says that a process took.


def layers_of(*rows: str) -> str:
    """Rows of "name type bottom[,bottom] top parameters" as a prototxt."""
    text = ""
    for row in rows:
        name, kind, bottoms, top, more = [*row.split(" ", 4), ""][:5]
        ends = "".join(f' bottom: "{bottom}"' for bottom in bottoms.split(",") if bottom != "-")
        text += f'layer {{ name: "{name}" type: "{kind}"{ends} top: "{top}" {more} }}\n'
    return text


def convolution(outputs: int, kernel: int = 3, stride: int = 1) -> str:
    filler = 'weight_filler { type: "msra" }'
    return f"convolution_param {{ num_output: {outputs} kernel_size: {kernel} pad: {kernel // 2} stride: {stride} {filler} }}"


IMAGE = "data Input - data input_param { shape { dim: 1 dim: 3 dim: 301 dim: 402 } }"
PLAIN = layers_of(
    IMAGE.replace("dim: 301 dim: 402", "dim: 241 dim: 322"),
    "c1 Convolution data c1 " + convolution(64),
    "r1 ReLU c1 c1",
    "c2 Convolution c1 c2 " + convolution(64),
    "r2 ReLU c2 c2",
    "p2 Pooling c2 p2 pooling_param { kernel_size: 2 stride: 2 }",
    "c3 Convolution p2 c3 " + convolution(192),
    "c4 Convolution c3 c4 " + convolution(256, 1),
    "r4 ReLU c4 c4",
    "p4 Pooling c4 p4 pooling_param { kernel_size: 7 stride: 7 }",
    'ip InnerProduct p4 ip inner_product_param { num_output: 200 weight_filler { type: "xavier" } }',
)
RESIDUAL = layers_of(
    IMAGE,
    "c1 Convolution data c1 " + convolution(96, 7, 2),
    "b1 BatchNorm c1 c1",
    "s1 Scale c1 c1 scale_param { bias_term: true }",
    "r1 ReLU c1 c1",
    *(
        row
        for i in range(1, 5)
        for row in (
            f"c{i}a Convolution c{i} c{i}a " + convolution(48, 1),
            f"b{i}a BatchNorm c{i}a c{i}a",
            f"r{i}a ReLU c{i}a c{i}a",
            f"c{i}b Convolution c{i}a c{i}b " + convolution(96),
            f"s{i}b Scale c{i}b c{i}b",
            f"sum{i} Eltwise c{i},c{i}b c{i + 1}",
            f"r{i}b ReLU c{i + 1} c{i + 1}",
        )
    ),
)
EXAMPLE = (Path(__file__).parents[2] / "examples/shapes/rfcn/test.prototxt").read_text()
LARGE = EXAMPLE.replace("dim: 240 dim: 320", "dim: 600 dim: 800")
"""BatchNorms of batch statistics, Scales in place, and a Proposal of 135000 anchors."""
TRAINED = PLAIN + layers_of("loss Reduction ip loss loss_weight: 1 reduction_param { operation: SUMSQ }")

MEASURE = """
import sys
from minicaffe import Net, Phase
from minicaffe.formats.prototxt import read_net
from minicaffe.registry import find
def kilobytes(field):
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith(field)).split()[1])
file, phase, keep = sys.argv[1:]
warm = Net("warm.prototxt", Phase[phase])
warm.forward_backward()
for layer in read_net(file).param.layer:
    find(layer.type)  # imports its module, perhaps as the first process, which compiles it
before, code = kilobytes("VmRSS"), kilobytes("RssFile")
net = Net(file, Phase[phase], keep=keep)
net.blobs["data"].data[...] = 1
if "im_info" in net.blobs:
    net.blobs["im_info"].data[...] = 600, 800, 1
for _ in range(2):
    net.forward_backward() if phase == "TRAIN" else net.forward()
print(1024 * (kilobytes("VmHWM") - before - (kilobytes("RssFile") - code)))
"""


@pytest.fixture
def one_thread() -> None:
    set_num_threads(1)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from Linux's /proc")
@pytest.mark.parametrize(
    ("text", "phase", "keep"),
    [
        pytest.param(PLAIN, TEST, "all", id="plain", marks=pytest.mark.slow),
        pytest.param(PLAIN, TEST, "outputs", id="plain, outputs", marks=pytest.mark.slow),
        pytest.param(RESIDUAL, TEST, "all", id="residual", marks=pytest.mark.slow),
        pytest.param(RESIDUAL, TEST, "outputs", id="residual, outputs"),
        pytest.param(LARGE, TEST, "all", id="example", marks=pytest.mark.slow),
        pytest.param(LARGE, TEST, "outputs", id="example, outputs", marks=pytest.mark.slow),
        pytest.param(TRAINED, TRAIN, "all", id="trained", marks=pytest.mark.slow),
    ],
)
def test_the_peak_is_what_a_run_takes(text: str, phase: Phase, keep: Keep, tmp_path: Path, one_thread: None) -> None:
    """In a process of its own.

    Within 15 %: fragments of the heap, tables of OpenBLAS. Pages of files are left out: a system that is short of memory
    takes them back, and they come again. On one thread: what several take at most for their work is counted in full, and
    these nets are so small that it would be most of them. glibc's threshold is fixed, or it grows with what the first net
    gives back, and the second is made of memory that was measured as taken before. Without Numba, whose own code is no memory
    of the net's."""
    (tmp_path / "net.prototxt").write_text(text)
    (tmp_path / "warm.prototxt").write_text(TRAINED.replace("dim: 241 dim: 322", "dim: 70 dim: 71"))
    command = [sys.executable, "-c", MEASURE, "net.prototxt", phase.name, keep]
    environment = {**os.environ, "MINICAFFE_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
    environment["MINICAFFE_LOOPS"] = "numpy"
    measured = int(subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout)
    memory = summarize(Net(parse_net(text), phase)).memory
    predicted = memory.peak if keep == "all" else memory.peak_of_outputs
    assert predicted == pytest.approx(measured, rel=0.15)


def panels(*weights: tuple[int, ...]) -> int:
    """Bytes of the panels that convolutions of few windows keep, with compiled loops, of weights of these shapes."""
    return sum(panels_bytes(shape, 1, np.dtype(np.float32)) for shape in weights) if compiled() else 0


def test_what_the_peak_is_made_of() -> None:
    """By hand: two convolutions on an Input of 2 x 6 x 5 x 7; all blobs, or those alive together."""
    text = layers_of(
        "data Input - data input_param { shape { dim: 2 dim: 6 dim: 5 dim: 7 } }",
        "a Convolution data a " + convolution(11),
        "r ReLU a a",
        "b Convolution a b " + convolution(13),
        "c InnerProduct b c inner_product_param { num_output: 3 }",
    )
    data, a, b, c = 2 * 6 * 35, 2 * 11 * 35, 2 * 13 * 35, 2 * 3
    weights = 11 * (6 * 9 + 1) + 13 * (11 * 9 + 1) + 3 * (13 * 35 + 1)
    memory = summarize(Net(parse_net(text), TEST)).memory
    assert memory.weights == 4 * weights
    assert memory.blobs == 4 * (data + a + b + c)
    kept = panels((11, 6, 3, 3), (13, 11, 3, 3))
    assert (memory.kept, memory.diffs) == (kept, 0)
    working = memory.working
    assert working == get_num_threads() * 2 * BLOCK_BYTES
    assert memory.peak == 4 * (weights + data + a + b + c) + kept + working
    assert (
        memory.peak_of_outputs == 4 * (weights + data + a + b + c) + kept + working
    )  # c is an output: it may stand from the first


KEEPING = layers_of(
    "data Input - data input_param { shape { dim: 2 dim: 3 dim: 5 dim: 7 } }",
    "batch BatchNorm data a batch_norm_param { use_global_stats: false }",
    "global BatchNorm a a batch_norm_param { use_global_stats: true }",
    "apart Scale a b",
    "batch2 BatchNorm b b batch_norm_param { use_global_stats: false }",
    "in_place Scale b b",
    "relu ReLU b b",
    "fixed Scale b b param { lr_mult: 0 }",
)


@pytest.mark.parametrize("phase", [TEST, TRAIN])
def test_what_is_kept_for_backward(phase: Phase) -> None:
    """Each of three layers one blob: batch and batch2 their batch normalised, in_place its input."""
    net = Net(parse_net(KEEPING), phase)
    memory, blob = summarize(net).memory, 4 * 2 * 3 * 5 * 7
    assert memory.kept == 3 * blob
    net.forward()
    values = [getattr(value, "blob", value) for layer in net.layers for value in vars(layer).values()]
    kept = (value for value in values if isinstance(value, Blob))
    held = sum(4 * value.count for value in kept if value.count > 3 and value.data_state is MemoryState.HOST)
    assert held == memory.kept
    if phase == TEST:
        assert memory.peak == memory.weights + 6 * blob
        assert memory.peak_of_outputs == memory.weights + 3 * blob  # data, a, b: b may stand from the first


def test_a_scale_that_runs_with_its_convolution_keeps_nothing() -> None:
    text = layers_of(
        "data Input - data input_param { shape { dim: 1 dim: 3 dim: 5 dim: 7 } }",
        "a Convolution data a " + convolution(4),
        "s Scale a a",
        "r ReLU a a",
    )
    of_weights = panels((4, 3, 3, 3))
    assert summarize(Net(parse_net(text), TEST)).memory.kept == of_weights
    with_loss = parse_net(text + layers_of("loss Reduction a loss loss_weight: 1"))
    assert summarize(Net(with_loss, TEST)).memory.kept == of_weights + 4 * 4 * 35


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_proposal_works_in(dtype: type) -> None:
    text = HEAD.replace("dim: 4 dim: 5", "dim: 110 dim: 130")
    net = Net(parse_net(text), TEST, dtype=dtype)
    net.blobs["info"].data[...] = 16 * 110, 16 * 130, 1
    net.forward()
    tracemalloc.start()
    net.forward()
    measured = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert summarize(net).memory.working == pytest.approx(measured, rel=0.15)


def test_in_training_diffs_count() -> None:
    text = TEXT + layers_of("loss Reduction ip loss loss_weight: 1")
    memory = summarize(Net(parse_net(text), TRAIN)).memory
    assert memory.peak_of_outputs is None
    assert memory.diffs == memory.weights + 4 * (
        3 * 120 + 120 + 16 + 1
    )  # conv and its two copies, flat, ip, loss; no loss reads up
