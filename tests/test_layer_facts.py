"""What layers say of themselves: complete for every built-in type, and the bytes as measured."""

from __future__ import annotations

import ast
import gc
import itertools
import re
import threading
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from google.protobuf import text_format
from numpy.typing import NDArray

import minicaffe
from minicaffe import TEST, TRAIN, Layer, Net, kernels, register, set_num_threads
from minicaffe.blob import Blob
from minicaffe.cli import main
from minicaffe.data.state_fields import Resumable
from minicaffe.formats.prototxt import parse_net
from minicaffe.kernels import loops_of
from minicaffe.layers import CATALOGUE, create
from minicaffe.layers.roi.psroi_layer import PSROILayer
from minicaffe.layers.roi.roi_layer import RoiLayer
from minicaffe.mode import Phase
from minicaffe.parameters import weight_name
from minicaffe.proto import caffe_pb2
from minicaffe.tracing.summary import summarize
from minicaffe.tracing.trace_facts import Ran, layer_facts

KINDS = sorted(set(CATALOGUE) - {"Python"})
Array = NDArray[np.float32]


def test_every_type_says_what_it_is() -> None:
    fields = caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_name
    wrong = []
    for kind in KINDS:
        layer = CATALOGUE[kind]
        blocks = [set(fields[block].message_type.fields_by_name) for block in layer.param_block]
        facts = {
            "linear": not layer.linear or ("num_output" in blocks[0] and layer.weight_names == ("weight", "bias")),
            "position_sensitive": not issubclass(layer, PSROILayer) or {"output_dim", "group_size"} <= blocks[0],
            "is_roi_layer": not issubclass(layer, RoiLayer) or all("spatial_scale" in block for block in blocks),
            "weight_names": layer.weight_names is not None or layer.param_block == ("recurrent_param",),
            "multiply_adds": layer.weight_names == () or layer.costs is not Layer.costs,
            "has_gradient": layer.has_gradient or layer.backward_cpu is Layer.backward_cpu or layer.num_bottom != 0,
        }
        wrong += [f"{kind}.{fact}" for fact, right in facts.items() if not right]
    assert wrong == []


def test_names_of_weights() -> None:
    text = """
    layer { name: "x" type: "Input" top: "x" top: "cont" top: "static" top: "maps" input_param { shape { dim: 4 dim: 2 dim: 3 }
      shape { dim: 4 dim: 2 } shape { dim: 2 dim: 5 } shape { dim: 1 dim: 4 dim: 5 dim: 6 } } }
    layer { name: "rnn" type: "RNN" bottom: "x" bottom: "cont" bottom: "static" top: "h" recurrent_param {
      num_output: 2 weight_filler { type: "xavier" } bias_filler { type: "constant" } } }
    layer { name: "dw" type: "ConvolutionDepthwise" bottom: "maps" top: "dw"
      convolution_param { num_output: 4 kernel_size: 3 } }
    layer { name: "bn" type: "BatchNorm" bottom: "dw" top: "bn" }
    layer { name: "scale" type: "Scale" bottom: "maps" bottom: "maps" top: "scale" scale_param { axis: 0 bias_term: true } }
    """
    layers = Net(parse_net(text), TEST).layer_dict
    names = {name: [weight_name(layer, i) for i in range(len(layer.blobs))] for name, layer in layers.items() if layer.blobs}
    assert names == {
        "rnn": ["weight_x", "bias", "weight_static", "weight_h", "weight_y", "bias_y"],
        "dw": ["weight", "bias"],
        "bn": ["mean_sum", "variance_sum", "factor"],
        "scale": ["bias"],
    }
    traced = [param.name for param in layer_facts(Net(parse_net(text), TEST), 2, layers["dw"], Ran(), False, 0).params]
    assert traced == ["weight", "bias"]


def test_a_class_that_does_not_say_counts_as_unknown(tmp_path: Path) -> None:
    """It is shown as a dash, also in the total, and never as 0."""

    class Attention(Layer):
        def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
            top[0].reshape(bottom[0].shape)

    register("Attention", Attention)
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 6 } } }
    layer { name: "a" type: "Attention" bottom: "x" top: "a" }
    layer { name: "r" type: "Scale" bottom: "a" top: "r" }
    layer { name: "y" type: "InnerProduct" bottom: "r" top: "y" inner_product_param { num_output: 2 } }
    """
    summary = summarize(Net(parse_net(text), TEST))
    (tmp_path / "net.prototxt").write_text(text)
    shown = CliRunner().invoke(main, ["summary", str(tmp_path / "net.prototxt")]).output
    assert [layer.multiply_adds for layer in summary.layers] == [0, None, 6, 12]
    assert summary.multiply_adds == 18
    assert summary.not_counted == ["Attention"]
    assert "18 multiply-adds (without Attention), " in shown
    assert " - " in next(line for line in shown.splitlines() if line.split()[:2] == ["a", "Attention"])
    assert summary.memory.working == 4 * 6, "it is taken to copy its bottom"


# Bytes, as tracemalloc counts them.

MIB = 2**20
BLOCKS = 4 * MIB
"""What is worked in block by block, whatever the size of the blobs, at most."""


def maps(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal(shape, np.float32)


def labels(*shape: int) -> Array:
    return np.random.default_rng(2).integers(0, 8, shape).astype(np.float32)


@pytest.fixture
def one_thread() -> None:
    set_num_threads(1)
    np.unique([0])  # imports numpy.ma, which no layer keeps


def whole_rois(count: int, size: tuple[int, int]) -> Array:
    """Rois (R, 5) that have the whole of a map of size (H, W), at a scale of 1."""
    return np.tile(np.array([0, 0, 0, size[1] - 1, size[0] - 1], np.float32), (count, 1))


X = maps(1, 16, 352, 256)
REGIONS: list[tuple[str, list[Array]]] = [
    *(
        (f'type: "{kind}" {block} {{ pooled_h: 7 pooled_w: 7 spatial_scale: 1 {more} }}', [x, whole_rois(rois, x.shape[2:])])
        for rois, x in ((125, maps(1, 256, 40, 60)), (25, maps(1, 128, 100, 160)))
        for kind, block, more in (
            ("ROIPooling", "roi_pooling_param", ""),
            ("ROIAlign", "roi_align_param", ""),
            ("ROIAlign", "roi_align_param", "pool: AVE"),
            ("ROIAlign", "roi_align_param", "pool: AVE sampling_ratio: 2"),
            ("ROIAlign", "roi_pooling_param", "pad_ratio: 0.25"),
            ("ROIPooling", "roi_pooling_param", "pad_ratio: 0.25"),
        )
    ),
    (
        'type: "ROIAlign" roi_align_param { pooled_h: 14 pooled_w: 14 spatial_scale: 1 }',
        [maps(1, 256, 38, 63), whole_rois(20, (38, 63))],
    ),
    *(
        (
            f'type: "{kind}" {block} {{ output_dim: 20 group_size: 3 spatial_scale: 1 }}',
            [maps(1, 180, *size), whole_rois(rois, size)],
        )
        for kind, block in (("PSROIPooling", "psroi_pooling_param"), ("PSROIAlign", "psroi_align_param"))
        for rois, size in ((200, (100, 160)), (2000, (40, 60)))
    ),
]
ALONE = [
    *(kind for kind in KINDS if CATALOGUE[kind].elementwise and kind not in ("Clip", "Eltwise", "Split")),
    *("ArgMax", "BatchNorm", "Bias", "Flatten", "Gather", "LRN", "MVN", "PReLU", "Reduction", "Scale", "Softmax", "Tile"),
]
CASES: list[tuple[str, list[Array]]] = [
    *((f'type: "{kind}"' + " tile_param { tiles: 2 }" * (kind == "Tile"), [X]) for kind in ALONE),
    ('type: "Normalize" norm_param {}', [X]),
    ('type: "Normalize" normalize_param {}', [X]),
    ('type: "BN" bn_param { eps: 0.001 }', [X]),
    ('type: "CuDNNBatchNorm"', [X]),
    ('type: "BN" bn_param { frozen: true }', [X]),
    ('type: "BN" bn_param { bn_mode: INFERENCE }', [X]),
    ('type: "Interp" interp_param { zoom_factor: 2 }', [X]),
    ('type: "Interp" interp_param { shrink_factor: 2 }', [X]),
    ('type: "Upsample" upsample_param { scale: 2 }', [X]),
    ('type: "Upsample" upsample_param { scale: 2 }', [X, np.tile(np.arange(X[0, 0].size, dtype=X.dtype), 16).reshape(X.shape)]),
    ('type: "Unpooling" unpooling_param { kernel_size: 2 stride: 2 unpool_h: 704 unpool_w: 512 }', [X]),
    ('type: "Unpooling" unpooling_param { unpool: AVE kernel_size: 2 stride: 2 unpool_h: 704 unpool_w: 512 }', [X]),
    ('type: "Padding" padding_param { pad_beg: 2 }', [X]),
    ('type: "SpatialProduct"', [X, X[:, :1]]),
    ('type: "BroadcastMul"', [X, X[:, :, 0, 0]]),
    ('type: "Axpy"', [X[:, :, 0, 0], X, X]),
    ('type: "SegAccuracy"', [X, labels(1, 1, 352, 256)]),
    ('type: "EltwiseAccuracy"', [X, labels(1, 1, 352, 256)]),
    ('type: "ArgMax" argmax_param { axis: 1 top_k: 3 }', [X]),
    ('type: "MVN" mvn_param { normalize_variance: false }', [X]),
    ('type: "Reduction" reduction_param { operation: ASUM }', [X]),
    ('type: "Pooling" pooling_param { pool: STOCHASTIC kernel_size: 2 stride: 2 }', [abs(X)]),
    ('type: "Pooling" pooling_param { kernel_size: 2 stride: 2 }', [X]),
    ('type: "Permute" permute_param { order: 0 order: 2 order: 3 order: 1 }', [X]),
    ('type: "Concat"', [X, X]),
    ('type: "Eltwise"', [X, X]),
    ('type: "Eltwise" eltwise_param { operation: MAX }', [X, X]),
    ('type: "Im2col" convolution_param { kernel_size: 2 }', [X[:, :6]]),
    ('type: "InnerProduct" inner_product_param { num_output: 64 }', [maps(1000, 2048)]),
    ('type: "ContrastiveLoss"', [maps(1000, 2048), maps(1000, 2048), labels(1000) % 2]),
    ('type: "EuclideanLoss"', [X, X]),
    ('type: "HingeLoss"', [maps(1000, 2048), labels(1000)]),
    ('type: "MultinomialLogisticLoss"', [abs(maps(1000, 2048)), labels(1000)]),
    ('type: "SigmoidCrossEntropyLoss"', [X, labels(*X.shape) % 2]),
    ('type: "SmoothL1Loss"', [X, X]),
    ('type: "SmoothL1LossOHEM"', [X, X]),
    ('type: "LSTM" recurrent_param { num_output: 512 }', [maps(64, 16, 128), np.ones((64, 16), np.float32)]),
    ('type: "Lstm" lstm_param { num_output: 512 own_states: true }', [maps(64, 16, 128)]),
    ('type: "RNN" recurrent_param { num_output: 512 }', [maps(64, 16, 128), np.ones((64, 16), np.float32)]),
    *REGIONS,
]


def made(text: str, arrays: list[Array], phase: Phase, in_place: bool = False) -> tuple[Layer, list[Blob], list[Blob]]:
    """Return a layer and its blobs, whose data are in memory."""
    param = caffe_pb2.LayerParameter(name="layer")
    text_format.Merge(text, param)
    bottom = [Blob(array.shape) for array in arrays]
    for blob, array in zip(bottom, arrays, strict=True):
        blob.data[...] = array
    top = [bottom[0]] if in_place else [Blob(())]
    layer = create(param, phase=phase)
    layer.connect(bottom, top)
    for loop in itertools.chain(*loops_of(layer)):
        loop.compile(layer.dtype)  # Numba's own memory is no layer's
    for blob in [*top, *layer.blobs]:
        blob.data[...] = blob.data
    for blob, array in zip(bottom, arrays, strict=True):
        blob.data[...] = array
    return layer, bottom, top


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """Freeze the reports of earlier tests, since each case below runs a garbage collection."""
    gc.collect()
    gc.freeze()


def measured(layer: Layer, bottom: list[Blob], top: list[Blob]) -> tuple[int, int]:
    """(what is there after a forward, without the blobs; what the next one takes at most beside that)."""
    before = tracemalloc.get_traced_memory()[0]
    layer.forward_pass(bottom, top)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    layer.forward_pass(bottom, top)
    return after - before, tracemalloc.get_traced_memory()[1] - after


def assert_as_told(working: int, told: int) -> None:
    """Compare with NumPy's way, which the layers' bytes describe. Compiled loops may take less."""
    if kernels.compiled():
        assert working <= 1.15 * told + BLOCKS
    else:
        assert working == pytest.approx(told, rel=0.15, abs=BLOCKS)


QUICK = {
    *("Axpy", "BN", "BatchNorm", "Concat", "EuclideanLoss", "HingeLoss", "Im2col", "Interp", "LRN", "MVN", "Normalize"),
    *("PSROIPooling", "Permute", "Pooling", "ROIAlign", "ROIPooling", "SigmoidCrossEntropyLoss", "SmoothL1LossOHEM"),
    *("Softmax", "Unpooling"),
}
"""Types that are also measured where slow tests are left out, over few rois."""


def mark(text: str, arrays: list[Array], in_place: bool = False) -> tuple[pytest.MarkDecorator, ...]:
    """Return the mark of a slow case that has a quick one of the same kind."""
    return () if text.split('"')[1] in QUICK and len(arrays[-1]) not in (125, 2000) and not in_place else (pytest.mark.slow,)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "arrays", "phase", "in_place"),
    [
        pytest.param(
            *(text, arrays, phase, in_place),
            id=f"{text} {arrays[0].shape} {phase}" + " in place" * in_place,
            marks=mark(text, arrays, in_place),
        )
        for text, arrays in CASES
        for phase in ((TEST,) if any(text is region for region, _ in REGIONS) else (TEST, TRAIN))
        for in_place in ((False, True) if CATALOGUE[text.split('"')[1]].in_place else (False,))
    ],
)
@pytest.mark.usefixtures("one_thread")
def test_bytes_kept_and_worked_in(text: str, arrays: list[Array], phase: Phase, in_place: bool) -> None:
    """Within what is worked in block by block: a copy of a bottom, 5.5 MiB, more or less is seen."""
    layer, bottom, top = made(text, arrays, phase, in_place)
    tracemalloc.start()
    try:
        kept, working = measured(layer, bottom, top)
    finally:
        tracemalloc.stop()
    assert kept == pytest.approx(layer.costs(bottom, top).saved, abs=MIB)
    assert_as_told(working, layer.costs(bottom, top).working)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "arrays"),
    [pytest.param(text, arrays, id=f"{text} {arrays[0].shape}", marks=mark(text, arrays)) for text, arrays in REGIONS],
)
@pytest.mark.usefixtures("one_thread")
def test_bytes_of_a_forward_and_a_backward_over_rois(text: str, arrays: list[Array]) -> None:
    layer, bottom, top = made(text, arrays, TRAIN)
    for blob in (*bottom, *top):
        blob.diff[...] = 1
    tracemalloc.start()
    try:
        kept, forward = measured(layer, bottom, top)
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        layer.backward_pass(top, [True, False], bottom)
        backward = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert kept == pytest.approx(layer.costs(bottom, top).saved, abs=MIB)
    assert_as_told(forward, layer.costs(bottom, top).working)
    assert_as_told(max(forward, backward), layer.costs(bottom, top, [True, False]).working)


@pytest.mark.slow
@pytest.mark.parametrize("propagate", [True, False], ids=["", "data without a gradient"])
@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ('type: "Convolution" convolution_param { num_output: 128 kernel_size: 3 pad: 1 }', (1, 96, 90, 100)),
        ('type: "Convolution" convolution_param { num_output: 256 kernel_size: 5 stride: 2 }', (2, 96, 60, 80)),
        ('type: "Convolution" convolution_param { num_output: 256 kernel_size: 5 group: 2 }', (1, 96, 75, 100)),
        ('type: "Convolution" convolution_param { num_output: 512 kernel_size: 3 stride: 2 }', (1, 256, 75, 125)),
        ('type: "Deconvolution" convolution_param { num_output: 64 kernel_size: 6 stride: 2 }', (1, 128, 50, 61)),
    ],
)
@pytest.mark.usefixtures("one_thread")
def test_bytes_of_a_convolutions_steps(text: str, shape: tuple[int, ...], propagate: bool) -> None:
    """The maps are large enough for every copy of one to show."""
    layer, bottom, top = made(text, [maps(*shape)], TRAIN)
    for blob in (*bottom, *top, *layer.blobs):
        blob.diff[...] = 1

    def steps() -> None:
        for _ in range(2):  # the second one finds the memory that the first one has kept
            layer.forward_pass(bottom, top)
            layer.backward_pass(top, [propagate], bottom)

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        thread = threading.Thread(target=steps)  # a new thread holds no temporary memory yet
        thread.start()
        thread.join()
        working = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert_as_told(working, layer.costs(bottom, top, [propagate]).working)


@pytest.mark.parametrize(
    ("shape", "windows", "phase"),
    [
        pytest.param(*case, id=" ".join(map(str, case)), marks=() if case[0][0] == 3 and case[2] == TRAIN else pytest.mark.slow)
        for case in itertools.product(
            [(1, 12, 512, 256), (2, 3, 700, 1100), (3, 50, 20, 32)],
            ["kernel_size: 2 stride: 2", "kernel_h: 3 kernel_w: 5 stride: 1"],
            [TEST, TRAIN],
        )
    ],
)
@pytest.mark.usefixtures("one_thread")
def test_bytes_of_a_block_of_stochastic_pooling(shape: tuple[int, ...], windows: str, phase: Phase) -> None:
    """It takes the memory of one block only, and a map may be larger than a block."""
    text = f'type: "Pooling" pooling_param {{ pool: STOCHASTIC {windows} }}'
    layer, bottom, top = made(text, [abs(maps(*shape))], phase)
    top[0].diff[...], bottom[0].diff[...] = 1, 1
    tracemalloc.start()
    try:
        _, forward = measured(layer, bottom, top)
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        layer.backward_pass(top, [True], bottom)
        backward = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert forward == pytest.approx(layer.costs(bottom, top).working, rel=0.07, abs=2**16)
    assert max(forward, backward) == pytest.approx(layer.costs(bottom, top, [True]).working, rel=0.07, abs=2**16)


# Nowhere else.

ROOT = Path(minicaffe.__file__).parent
FORMATS = {"upgrade", "caffemodel", "fork_numbers", "forks"}
"""What old and foreign files call types, and what that tells of a file: data of a format."""


def code() -> list[Path]:
    imports = ROOT / "porting" / "onnx_import"
    others = (
        ROOT / "layers" / "__init__.py",
        imports / "builder.py",
        imports / "functions.py",
    )  # these two have ONNX's operators
    return [path for path in sorted(ROOT.rglob("*.py")) if path.stem not in FORMATS and path not in others]


def test_no_table_of_type_names_stands_beside_the_classes() -> None:
    """A type's facts stand on its class, and what a tool knows of it in a table by class."""
    found, types = [], set(CATALOGUE)
    for path in code():
        text = path.read_text(encoding="utf-8")
        if len(types.intersection(re.findall(r"\w+", text))) < 2:
            continue
        for node in ast.walk(ast.parse(text)):
            inside: list[Any] = []
            if isinstance(node, ast.Tuple | ast.List | ast.Set):
                inside = node.elts
            elif isinstance(node, ast.Dict):
                inside = node.keys
            names = {item.value for item in inside if isinstance(item, ast.Constant) and isinstance(item.value, str)}
            if len(names & types) > 1:
                found.append(f"{path}:{node.lineno}")
    assert not found


def test_the_engine_names_no_layer_class() -> None:
    engine = [
        "blob",
        "blob_memory",
        "layer",
        "registry",
        "net",
        "net_arguments",
        "pycaffe_net",
        "plan",
        "layer_list",
    ]
    classes = {layer.__name__ for layer in CATALOGUE.values()} - {"Filter", "Parameter", "Input"}
    for stem in engine:
        tree = ast.parse((ROOT / f"{stem}.py").read_text(encoding="utf-8"))
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not names & classes, stem


def test_which_forwards_must_follow_each_other() -> None:
    """Types with a state to resume from, with random numbers also in TEST, and with files.

    setup adds DummyData, DetectionOutput and FixedNeuron. NVIDIA's BatchNorm counts only in TRAIN.
    """
    found = {kind for kind in KINDS if CATALOGUE[kind].stateful}
    keeps_state = {kind for kind in KINDS if issubclass(CATALOGUE[kind], Resumable)}
    assert keeps_state - found == {"BatchNorm", "DetectionOutput", "FixedNeuron"}
    drawn = {"AnchorTarget", "DetectionGroupLoss", "FrcnnAnchorTarget", "FrcnnProposalTarget", "ProposalTarget"}
    assert found - keeps_state == {"HDF5Output", *drawn}
