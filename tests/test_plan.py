"""The execution plan: chains give what their layers give one by one, and nobody who looks on misses anything."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chains import BIASED, CHAINS, FIXED, ONE_BY_ONE, RENAMED, TRAINED, assert_same, conv, net_of, on, ran_together, watched

from minicaffe import kernels, limits
from minicaffe.blob import Blob, Unchanged
from minicaffe.compiled import jobs as job_lists
from minicaffe.data.images import load_image
from minicaffe.data.settings import read_settings
from minicaffe.detection.detect import detect
from minicaffe.errors import Error, LayerError
from minicaffe.formats.prototxt import parse_net
from minicaffe.hooks import debug_info
from minicaffe.layer import Layer
from minicaffe.layers import CATALOGUE
from minicaffe.layers.elementwise.eltwise import MAX
from minicaffe.layers.neuron.relu import ReLU
from minicaffe.layers.pool.pooling import AVE, Pooling
from minicaffe.mode import TEST, TRAIN
from minicaffe.net import Net
from minicaffe.plan import FusedGroup
from minicaffe.tracing.summary import Times
from minicaffe.tracing.tracer import Tracer

SHAPES = Path(__file__).resolve().parents[1] / "examples" / "shapes"


@pytest.mark.parametrize("case", CHAINS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), pytest.param(np.float64, 1e-14, marks=pytest.mark.slow)])
def test_a_chain_gives_what_its_layers_give(case: str, dtype: type, tolerance: float) -> None:
    text, chains = CHAINS[case]
    net, other = net_of(text, dtype=dtype), watched(net_of(text, dtype=dtype))
    for height in (7, 9):
        for one in (net, other):
            one.blobs["data"].reshape(2, 6, height, 5)
            one.blobs["data"].data[...] = np.random.default_rng(height).standard_normal((2, 6, height, 5))
            one.forward()
        assert ran_together(net) == chains
        assert ran_together(other) == []
        assert_same(net, other, tolerance)


@pytest.mark.parametrize("case", ONE_BY_ONE)
def test_what_is_no_chain_runs_one_by_one(case: str) -> None:
    net, other = net_of(ONE_BY_ONE[case]), watched(net_of(ONE_BY_ONE[case]))
    assert net.forward_from_to(0, len(net.layers) - 1) == other.forward_from_to(0, len(net.layers) - 1)
    assert ran_together(net) == []
    assert_same(net, other, 0)


TEXT, WHOLE = CHAINS["conv, bn, scale, relu"]


@pytest.mark.filterwarnings("error")
def test_weights_that_overflow_do_so_without_a_warning() -> None:
    """Like single layers, and like Caffe: a chain's weights are joined before any layer runs."""
    net = net_of(TEXT)
    mean, variance, factor = net.params["conv_batchnorm"]
    mean.data[...], variance.data[...], factor.data[...] = 1e30, 1, 1
    net.params["conv_scale"][0].data[...] = -1e30
    net.forward()
    assert ran_together(net) == WHOLE
    assert np.isinf(net.blobs[net.outputs[0]].data).all()


def test_weights_count_as_they_are_at_each_forward() -> None:
    net, other = net_of(TEXT), watched(net_of(TEXT))
    net.forward()
    for one in (net, other):
        for blobs in one.params.values():
            for blob in blobs:
                blob.data[...] *= 1.5
        one.forward()
    assert ran_together(net) == WHOLE
    assert_same(net, other)


def test_start_and_end_cut_a_chain() -> None:
    net, other = net_of(TEXT), watched(net_of(TEXT))
    out = net.forward(end="conv_batchnorm")["conv"].copy()
    np.testing.assert_array_equal(out, other.forward(end="conv_batchnorm")["conv"])
    assert ran_together(net) == []
    net.forward(start="conv_scale")
    other.forward(start="conv_scale")
    assert ran_together(net) == []
    assert_same(net, other, 0)
    net.forward(start="conv", end="conv_relu")
    assert ran_together(net) == WHOLE
    assert_same(net, other)


def test_whoever_looks_on_gets_every_layer(caplog: pytest.LogCaptureFixture) -> None:
    net = net_of(TEXT)
    values = []
    hook = net.after_forward(lambda i: values.append(float(net.nodes[i].tops[0].data.min())))
    net.forward()
    net.remove_hook(hook)
    assert len(values) == 5
    assert values[-1] == 0 > max(values[1:-1])
    with Tracer(net) as tracer:
        net.forward()
    assert [step.layer for step in tracer.trace.steps if step.kind == "forward"] == [0, 1, 2, 3, 4]
    assert ran_together(net) == []
    caplog.set_level("INFO", logger="minicaffe.solver")
    with debug_info(net):
        net.forward()
    assert "Layer conv_batchnorm, top blob conv data" in caplog.text
    net.forward()
    assert ran_together(net) == WHOLE
    times = Times(net)
    net.forward()
    assert all(times.forward[1:])
    assert ran_together(net) == []


def test_classes_of_the_user_run_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Louder(ReLU):
        def forward_cpu(self, bottom: Any, top: Any) -> None:
            top[0].data[...] = bottom[0].data + 100

    monkeypatch.setitem(CATALOGUE, "Louder", Louder)
    net = net_of(conv() + on("Louder", "conv"))
    net.forward()
    assert ran_together(net) == []
    assert net.blobs["conv"].data.min() > 50


LOSS = 'layer { name: "loss" type: "EuclideanLoss" bottom: "%s" bottom: "%s" top: "loss" }'


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("case", CHAINS)
def test_gradients_after_a_forward_in_test(case: str, late: bool) -> None:
    """force_backward before the forward, or only after it."""
    nets = [net_of(CHAINS[case][0]), watched(net_of(CHAINS[case][0]))]
    for net in nets:
        if not late:
            net.force_backward()
        net.forward()
        if late:
            assert bool(ran_together(net)) == (net is nets[0])
            net.force_backward()
        net.clear_param_diffs()
        random = np.random.default_rng(2)
        for name in net.outputs:
            net.blobs[name].diff[...] = random.standard_normal(net.blobs[name].shape)
        net.backward()
    assert_same(*nets)
    for mine, wanted in zip(nets[0].learnable_params, nets[1].learnable_params, strict=True):
        np.testing.assert_allclose(mine.diff, wanted.diff, rtol=0, atol=1e-5 * max(np.abs(wanted.diff).max(), 1e-3))
    dx, wanted_dx = (net.blobs["data"].diff for net in nets)
    assert np.abs(wanted_dx).max() > 0
    np.testing.assert_allclose(dx, wanted_dx, rtol=0, atol=1e-5 * np.abs(wanted_dx).max())


def trained(case: str, text: str = "") -> list[Net]:
    """Two nets in TRAIN, the second run layer by layer, after a step's forward and backward."""
    text = text or TRAINED[case]
    blob = next(name for name in ("sum", "y", "conv") if f'top: "{name}"' in text)
    shape = "input_param { shape { dim: 2 dim: 8 dim: 7 dim: 5 } }"
    target = f'layer {{ name: "target" type: "Input" top: "target" {shape} }}'
    nets = [net_of(text + conv("top", blob) + target + LOSS % ("top", "target"), TRAIN) for _ in range(2)]
    watched(nets[1]).before_backward(lambda i: None)
    for net in nets:
        net.blobs["target"].data[...] = np.random.default_rng(8).standard_normal(net.blobs["target"].shape)
        net.clear_param_diffs()
        net.forward_backward()
    return nets


@pytest.mark.usefixtures("loops_way")
@pytest.mark.parametrize("case", TRAINED)
def test_a_chain_trains_as_its_layers_do(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[bool] = []
    backward = FusedGroup.backward
    monkeypatch.setattr(FusedGroup, "backward", lambda self: passes.append(backward(self)) or passes[-1])
    net, other = trained(case)
    assert ran_together(net)
    assert ran_together(other) == []
    assert passes == [case != "nothing below learns"]
    assert_same(net, other)
    for mine, wanted in zip(net.learnable_params, other.learnable_params, strict=True):
        np.testing.assert_allclose(mine.diff, wanted.diff, rtol=0, atol=1e-5 * np.abs(wanted.diff).max())
    for name, blob in other.blobs.items():
        np.testing.assert_allclose(net.blobs[name].diff, blob.diff, rtol=0, atol=1e-5 * np.abs(blob.diff).max(), err_msg=name)


def test_a_scale_that_learns_trains_one_by_one() -> None:
    text = conv("below") + conv(bottom="below") + on("BatchNorm", "conv", FIXED) + on("Scale", "conv", BIASED)
    net, other = trained("", text)
    assert ran_together(net) == []
    assert np.abs(net.params["conv_scale"][0].diff).max() > 0
    for mine, wanted in zip(net.learnable_params, other.learnable_params, strict=True):
        np.testing.assert_array_equal(mine.diff, wanted.diff)


def test_a_bias_of_a_frozen_scale_may_learn() -> None:
    only = BIASED + " param { lr_mult: 0 } param { lr_mult: 1 }"
    net, other = trained("", conv("below") + conv(bottom="below") + on("Scale", "conv", only) + on("ReLU", "conv"))
    assert ran_together(net)
    for mine, wanted in zip(net.learnable_params, other.learnable_params, strict=True):
        np.testing.assert_allclose(mine.diff, wanted.diff, rtol=0, atol=1e-5 * np.abs(wanted.diff).max())
    assert np.abs(net.params["conv_scale"][1].diff).max() > 0


def test_backward_through_a_part_of_a_chain() -> None:
    net, other = trained("conv, bn, scale, relu")
    for one in (net, other):
        one.blobs["conv"].diff[...] = 1
        one.backward(start="conv_relu", end="conv_scale")
    np.testing.assert_array_equal(net.blobs["conv"].diff, other.blobs["conv"].diff)
    for one in (net, other):
        one.backward(start="conv_scale", end="below")
    np.testing.assert_allclose(net.blobs["below"].diff, other.blobs["below"].diff, rtol=1e-4, atol=1e-5)


def test_whoever_looks_on_backward_gets_every_layer() -> None:
    net, _ = trained("conv, bn, scale, relu")
    seen: list[int] = []
    net.after_backward(seen.append)
    net.forward_backward()
    assert seen == list(reversed(range(len(net.layers))))


def test_a_loss_in_test_gives_the_gradients_of_what_lies_between() -> None:
    text = TEXT + conv("target") + LOSS % ("conv", "target")
    nets = [net_of(text), watched(net_of(text))]
    losses = []
    for net in nets:
        net.clear_param_diffs()
        losses.append(net.forward_backward())
    assert ran_together(nets[0]) == []  # Scale's gradient needs its input
    assert losses[0] == losses[1] > 0
    for mine, wanted in zip(nets[0].params["conv_scale"], nets[1].params["conv_scale"], strict=True):
        np.testing.assert_array_equal(mine.diff, wanted.diff)


def test_errors_name_their_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 'scale_param { axis: 1 num_axes: 2 filler { type: "gaussian" std: 1 } }'
    net = net_of(on("BatchNorm", "y", bottom="data") + on("Scale", "y", rows) + on("ReLU", "y"))
    net.blobs["data"].reshape(2, 6, 8, 5)
    with pytest.raises(LayerError, match='Scale layer "y_scale"'):
        net.forward()
    net.blobs["data"].reshape(2, 4, 7, 5)
    with pytest.raises(LayerError, match='BatchNorm layer "y_batchnorm"'):
        net.forward()
    net = net_of(TEXT)

    def no_memory(*_: Any, **__: Any) -> None:
        raise MemoryError("of 3 TiB")

    monkeypatch.setattr("minicaffe.layers.conv.convolution.chosen", no_memory)
    with pytest.raises(LayerError, match='Convolution layer "conv": out of memory: of 3 TiB'):
        net.forward()


@pytest.mark.parametrize(("kind", "least"), [("rfcn", 10), ("faster_rcnn", 5)])
def test_the_shapes_detectors_find_the_same(kind: str, least: int) -> None:
    """They run with their training's statistics instead of each image's own."""
    text = (SHAPES / kind / "test.prototxt").read_text().replace("use_global_stats: false", "use_global_stats: true")
    net, other = (Net(parse_net(text), TEST, weights=SHAPES / kind / f"shapes_{kind}.caffemodel") for _ in range(2))
    watched(other)
    image, settings = load_image(SHAPES / "scene.png"), read_settings(SHAPES / "shapes.yml")
    found, wanted = (detect(one, image, settings=settings, threshold=0.5) for one in (net, other))
    assert len(ran_together(net)) >= least
    assert len(found) == len(wanted) > 0
    np.testing.assert_array_equal(found.classes, wanted.classes)
    np.testing.assert_allclose(found.scores, wanted.scores, rtol=1e-4)
    for name in ("rpn_cls_score", "rpn_bbox_pred"):  # later layers round boxes to cells
        values = other.blobs[name].data
        np.testing.assert_allclose(net.blobs[name].data, values, rtol=0, atol=1e-5 * np.abs(values).max())


def steps_made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the first layers' names of the steps that are made from here on, but those of inputs."""
    made: list[str] = []
    make = FusedGroup._step

    def noted(self: FusedGroup) -> Any:
        if self.nodes[0].bottoms:
            made.append(self.nodes[0].layer.name)
        return make(self)

    monkeypatch.setattr(FusedGroup, "_step", noted)
    return made


def changed_weights(net: Net) -> None:
    net.params["conv"][0].data[...] *= 2


def changed_shift(net: Net) -> None:
    net.params["conv_scale"][1].data[...] += 3


def other_blob(net: Net) -> None:
    blob = Blob(net.params["conv"][0].shape)
    blob.data[...] = 0.25
    net.params["conv"][0] = blob


def shared_weights(net: Net) -> None:
    other = net_of(TEXT)
    other.params["conv"][1].data[...] = 7
    net.share_with(other)


def other_eps(net: Net) -> None:
    net.layer_dict["conv_batchnorm"].eps = 2.0  # type: ignore[attr-defined]


def other_shape(net: Net) -> None:
    net.blobs["data"].reshape(1, 6, 8, 3)


def set_all(layer: Layer, setting: dict[str, Any]) -> None:
    for name, value in setting.items():
        setattr(layer, name, value)


CHANGES = [changed_weights, changed_shift, other_blob, shared_weights, other_eps, other_shape]


@pytest.mark.usefixtures("loops_way")
@pytest.mark.parametrize(
    ("text", "layer", "setting"),
    [
        (CHAINS["bn, relu in place"][0], "p_batchnorm", {"eps": 3.0}),
        (CHAINS["sum"][0], "sum", {"coeff": (2.0, 5.0)}),
        (CHAINS["sum"][0], "sum", {"operation": MAX}),
    ],
)
def test_settings_of_the_first_layer_count_too(text: str, layer: str, setting: dict[str, Any]) -> None:
    net, other = net_of(text), watched(net_of(text))
    net.forward()
    net.forward()
    for one in (net, other):
        set_all(one.layer_dict[layer], setting)
        one.forward()
    assert ran_together(net)
    assert_same(net, other)


ALONE = {
    "PriorBox": "prior_box_param { min_size: 3 max_size: 6 }",
    "Pooling": "pooling_param { kernel_size: 2 stride: 2 }",
    "ShuffleChannel": "shuffle_channel_param { group: 3 }",
    "Reorg": "reorg_param { stride: 2 reverse: true }",
    "Reshape": "reshape_param { pixelshuffler: 2 }",
    "Concat": "",
    "Permute": "permute_param { order: 0 order: 2 order: 3 order: 1 }",
}
"""Layers whose step is kept."""


def kept_alone(kind: str) -> tuple[Net, Net, Any]:
    """Return a net in which this layer's step is kept, one that runs layer by layer, and what both run."""
    bottoms = 'bottom: "conv" bottom: "data"' if kind == "PriorBox" else 'bottom: "conv" bottom: "conv"'
    bottoms = bottoms if kind in {"PriorBox", "Concat"} else 'bottom: "conv"'
    text = conv(outputs=36) + f'layer {{ name: "y" type: "{kind}" {bottoms} top: "y" {ALONE[kind]} }}\n'
    nets = net_of(text), watched(net_of(text))

    def run() -> None:
        for net in nets:
            net.forward()
            net.forward()
        assert_same(*nets)

    return *nets, run


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        ("PriorBox", {"variance": (0.5,)}),
        ("PriorBox", {"offsets": ((0.25, 0.5),)}),
        ("PriorBox", {"step": (2.0, 3.0)}),
        ("Pooling", {"method": AVE}),
        ("ShuffleChannel", {"group": 4}),
        ("Reorg", {"stride": 3}),
        ("Reshape", {"factor": 3}),
    ],
)
def test_settings_of_a_layer_whose_step_is_kept(kind: str, setting: dict[str, Any]) -> None:
    *nets, run = kept_alone(kind)
    run()
    for net in nets:
        set_all(net.layer_dict["y"], setting)
    run()


def by_width(param: Any) -> None:
    param.permute_param.order[:] = [0, 3, 2, 1]


def by_height(param: Any) -> None:
    param.concat_param.axis = 2


def cut_off(param: Any) -> None:
    param.prior_box_param.clip = True


@pytest.mark.parametrize(("kind", "change"), [("Permute", by_width), ("Concat", by_height), ("PriorBox", cut_off)])
def test_parameters_of_a_layer_whose_step_is_kept(kind: str, change: Any) -> None:
    """The parameters are those that reshape and forward read."""
    *nets, run = kept_alone(kind)
    run()
    for net in nets:
        change(net.layer_dict["y"].param)
    run()


def test_backward_after_the_net_was_reshaped_to_another_shape_and_back() -> None:
    """Maps of 9 x 8 and of 8 x 9 pixels both give 4 x 4 windows."""
    pool = 'layer { name: "y" type: "Pooling" bottom: "conv" top: "y" pooling_param { pool: AVE kernel_size: 3 stride: 2 } }'
    nets = net_of("force_backward: true " + conv() + pool), watched(net_of("force_backward: true " + conv() + pool))
    for net in nets:
        for shape in ((2, 6, 9, 8), (2, 6, 8, 9), (2, 6, 9, 8)):
            net.blobs["data"].reshape(shape)
            if shape[2] == 8:
                net.reshape()
            else:
                net.blobs["data"].data[...] = np.random.default_rng(1).standard_normal(shape)
                net.forward()
                net.forward()
        net.blobs["y"].diff[...] = np.random.default_rng(2).standard_normal((2, 8, 4, 4))
        net.backward()
    for mine, other in zip(*(net.blobs.values() for net in nets), strict=True):
        np.testing.assert_allclose(mine.diff, other.diff, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("in_order")
def test_a_layer_that_has_no_jobs_is_reshaped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net = net_of('layer { name: "mask" type: "Pooling" bottom: "data" top: "y" top: "m" pooling_param { kernel_size: 2 } }')
    with kernels.using("numba"):
        net.forward()
        reshaped: list[int] = []
        reshape = Pooling.reshape
        monkeypatch.setattr(Pooling, "reshape", lambda *given: reshaped.append(1) or reshape(*given))
        net.forward()
    assert len(reshaped) == 1


def test_layers_that_share_weights_keep_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    net = net_of(CHAINS["shared weights"][0])
    other = net_of(CHAINS["shared weights"][0])
    other.share_with(net)
    for one in (net, other):
        one.forward()
        one.forward()
    made = steps_made(monkeypatch)
    for one in (net, other):
        one.forward()
    assert made == []
    net.params["a"][0].data[...] *= 2
    for one in (net, other):
        one.forward()
    assert made == ["a", "b"] * 2
    assert_same(net, other, 0)


@pytest.mark.usefixtures("loops_way")
@pytest.mark.parametrize("change", CHANGES)
def test_a_step_is_made_again_only_where_something_has_changed(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    net, other = net_of(TEXT), watched(net_of(TEXT))
    made = steps_made(monkeypatch)
    for _ in range(3):
        net.forward()
    assert made == ["conv"]
    for one in (net, other):
        change(one)
        one.forward()
    assert made == ["conv"] * 2
    assert ran_together(net) == WHOLE
    assert_same(net, other)
    net.forward()
    assert made == ["conv"] * 2
    assert_same(net, other)


def test_weights_that_somebody_holds_are_read_at_each_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    net, other = net_of(TEXT), watched(net_of(TEXT))
    made = steps_made(monkeypatch)
    views = [one.params["conv_scale"][0].data[2:] for one in (net, other)]
    for _ in range(3):
        net.forward()
    assert made == ["conv"] * 3
    for view, one in zip(views, (net, other), strict=True):
        view += 1
        one.forward()
    assert_same(net, other)
    for view in views:
        view += 1
    del view, views
    for one in (net, net, other):
        one.forward()
    assert made == ["conv"] * 5
    assert_same(net, other)


def test_threads_and_ways_make_steps_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    net, made = net_of(TEXT), steps_made(monkeypatch)
    net.forward()
    monkeypatch.setenv("MINICAFFE_CONV", "direct")
    net.forward()
    net.forward()
    assert made == ["conv"] * 2


def test_a_chain_that_ran_layer_by_layer_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    net, made = net_of(TEXT), steps_made(monkeypatch)
    net.forward()
    net.forward(end="conv_scale")
    net.forward()
    assert made == ["conv"] * 2


BRANCHES = (
    conv("a", more="stride: 1", outputs=16)
    + on("ReLU", "a")
    + 'layer { name: "pool" type: "Pooling" bottom: "a" top: "pool" pooling_param { kernel_size: 3 stride: 2 } }'
    + conv("b", "pool", outputs=32)
    + on("BatchNorm", "b")
    + on("ReLU", "b")
    + conv("c", "pool", outputs=7)
    + 'layer { name: "both" type: "Concat" bottom: "b" bottom: "c" top: "both" }'
    + on("ReLU", "both")
    + 'layer { name: "mixed" type: "ShuffleChannel" bottom: "both" top: "mixed" shuffle_channel_param { group: 3 } }'
    + conv("d", "mixed", outputs=5)
)
"""Every layer can be kept as jobs; there is a Split."""


def kept_net(watch: bool = False, keep: str = "all") -> Net:
    """BRANCHES on two large images, in which `b` is Winograd's."""
    net = net_of(BRANCHES, keep=keep)
    net.blobs["data"].reshape(2, 6, 61, 53)
    net.blobs["data"].data[...] = np.random.default_rng(4).standard_normal((2, 6, 61, 53))
    return watched(net) if watch else net


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many jobs each list had that a net ran."""
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    found: list[int] = []

    class Counted(job_lists.JobList):
        def run(self, first: int = 0, end: int | None = None) -> int:
            found.append(len(self._jobs[first:end]))
            return super().run(first, end)

    monkeypatch.setattr("minicaffe.compiled.program.JobList", Counted)
    monkeypatch.setattr("minicaffe.compiled.program.SECONDS", 1e9)
    return found


JOBS = 9
"""Of BRANCHES: two of Concat, and one of each other layer or chain but Split."""


def test_what_is_kept_runs_as_one_list_of_jobs(in_order: list[int]) -> None:
    with kernels.using("numba"):
        net, other = kept_net(), kept_net(watch=True)
        other.share_with(net)
        net.forward()
        assert in_order == []
        for scale in (1, 3):
            for one in (net, other):
                one.blobs["data"].data[...] *= scale
                one.forward()
            assert_same(net, other)
        for _ in range(5):
            net.forward()
        assert in_order[-1] == JOBS
        net.params["c"][0].data[...] += 1
        in_order.clear()
        for one in (net, other):
            one.forward()
        assert_same(net, other)
        assert sum(in_order) == JOBS - 1  # c's step was made again
        in_order.clear()
        net.forward(start="b", end="both_relu")
        assert sum(in_order) == 5
        assert_same(net, other)


def test_where_nothing_has_changed_nothing_is_looked_at(in_order: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """But parameters, which may be changed in place."""
    with kernels.using("numba"):
        net = kept_net()
        for _ in range(5):
            net.forward()
        looked: list[object] = []
        holds = Unchanged.holds
        monkeypatch.setattr(Unchanged, "holds", lambda self: looked.append(self) or holds(self))
        net.forward(data=np.ones(net.blobs["data"].shape))
        assert in_order[-1] == JOBS and looked == []
        net.layer_dict["c"].blobs[0] = net.layer_dict["c"].blobs[0]
        net.forward()
        assert in_order[-1] == JOBS and looked
        net.force_backward()  # sets attributes of layers
        net.forward()
        net.forward()
        assert in_order[-1] == JOBS


def test_boxes_stay_where_other_blobs_lie_in_the_same_memory(in_order: list[int]) -> None:
    boxes = f'layer {{ name: "y" type: "PriorBox" bottom: "conv" bottom: "data" top: "y" {ALONE["PriorBox"]} }}'
    twice = 'layer { name: "twice" type: "Concat" bottom: "y" bottom: "y" top: "out" }'
    text = conv(outputs=36) + boxes + conv("next", "conv", outputs=36) + conv("last", "next", outputs=7) + twice
    with kernels.using("numba"):
        net, other = net_of(text, keep="outputs"), net_of(text)
        other.share_with(net)
        for _ in range(5):
            wanted, found = other.forward(), net.forward()
            for name in ("last", "out"):
                np.testing.assert_array_equal(found[name], wanted[name])
        assert in_order[-2:] == [5, 5]


def test_of_the_outputs_alone_layers_in_a_row_share_two_places(in_order: list[int]) -> None:
    text = conv("a", outputs=8) + "".join(conv(name, of, more="pad: 1", outputs=8) for of, name in zip("abcde", "bcdef"))
    with kernels.using("numba"):
        net, whole = net_of(text, keep="outputs"), net_of(text)
        whole.share_with(net)
        for _ in range(5):
            np.testing.assert_array_equal(net.forward()["f"], whole.forward()["f"])
        assert in_order[-2:] == [6, 6]
        places = [net.blobs[name].data_memory.address for name in "abcde"]
        assert len(set(places)) == 2 and all(place != after for place, after in pairwise(places))
        for name in "abcde":
            with pytest.raises(Error, match=f'the blob "{name}" was freed'):
                net.blobs[name].read_data()
        np.testing.assert_array_equal(net.forward(blobs=["c"])["c"], whole.blobs["c"].data)
        np.testing.assert_array_equal(net.forward(blobs=["c"])["c"], whole.blobs["c"].data)
        assert in_order[-2:] == [6, 6]
        with pytest.raises(Error, match='the blob "b" was freed'):
            net.forward(start="c")


def test_boxes_that_somebody_overwrites_are_put_anew(in_order: list[int]) -> None:
    """PriorBox's boxes stay in its top until then."""
    text = (
        conv(outputs=36) + f'layer {{ name: "y" type: "PriorBox" bottom: "conv" bottom: "data" top: "y" {ALONE["PriorBox"]} }}'
    )
    with kernels.using("numba"):
        net = net_of(text + 'layer { name: "twice" type: "Concat" bottom: "y" bottom: "y" top: "out" }')
        wanted, y = net.forward()["out"].copy(), net.blobs["y"]
        for _ in range(4):
            net.forward()
        writes = y.data_memory.writes
        net.forward()
        assert y.data_memory.writes == writes
        held = y.data
        for value in (7, 8):
            held[...] = value
            np.testing.assert_array_equal(net.forward()["out"], wanted)
        del held
        net.forward()
        y.data[0, 1] = 9
        np.testing.assert_array_equal(net.forward()["out"], wanted)
        assert in_order[-1] == 3


def test_layers_that_compute_nothing_do_not_part_a_list_of_jobs(in_order: list[int]) -> None:
    text = (
        conv("a", outputs=6)
        + 'layer { name: "drop" type: "Dropout" bottom: "a" top: "a" dropout_param { dropout_ratio: 0.75 } }'
        + 'layer { name: "lines" type: "Reshape" bottom: "a" top: "x" reshape_param { shape { dim: [0, -1, 3] } } }'
        + 'layer { name: "y" type: "Softmax" bottom: "x" top: "y" softmax_param { axis: 2 } }'
    )
    with kernels.using("numba"):
        net, other = net_of(text), watched(net_of(text))
        other.share_with(net)
        for _ in range(3):
            net.forward()
        assert in_order[-1] == 2
        other.forward()
        assert_same(net, other)
        before = net.blobs["a"].data.copy()
        for one in (net, other):
            one.layers[[layer.name for layer in one.layers].index("drop")].scale_train = False
            one.forward()
        np.testing.assert_allclose(net.blobs["a"].data, before / 4, rtol=1e-6)
        assert_same(net, other)


@pytest.mark.parametrize("keep", ["all", "outputs"])
def test_numbers_that_are_not_finite_are_made_again_before_they_are_read(keep: str, in_order: list[int]) -> None:
    """Winograd makes NaN of what is infinite, and spreads it: its job is flagged, and those behind it wait."""
    with kernels.using("numba"):
        net, other = kept_net(keep=keep), kept_net(watch=True)
        other.share_with(net)
        for _ in range(6):
            net.forward()
        for one in (net, other):
            one.blobs["data"].data[0, 2, 30, 20] = np.inf
            one.forward()
        assert 0 < np.isnan(net.blobs["d"].data).mean() < 0.5
        assert in_order[-2:] == [JOBS, JOBS - 3]  # again from the layer after the flag
        for name in ("b", "mixed", "d") if keep == "all" else ("d",):
            np.testing.assert_allclose(net.blobs[name].data, other.blobs[name].data, rtol=1e-4, atol=1e-4)


def test_many_slow_jobs_heed_ctrl_c_in_between(in_order: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minicaffe.compiled.program.SECONDS", 0)
    with kernels.using("numba"):
        net = kept_net()
        for _ in range(3):
            net.forward()
    assert in_order == [1] * 2 * JOBS


def test_a_lack_of_memory_names_the_layer_that_needs_most(in_order: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    with kernels.using("numba"):
        net = kept_net()
        for _ in range(6):
            net.forward()
        job_lists._kept.room = None
        monkeypatch.setattr(limits, "bytes", 1000)
        with pytest.raises(LayerError, match=r'Convolution layer "[abcd]": its temporary memory has'):
            net.forward()


def test_a_class_derived_from_ours_may_compute_anything(in_order: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    class Halved(Pooling):
        def forward_cpu(self, bottom: Any, top: Any) -> None:
            super().forward_cpu(bottom, top)
            top[0].data[...] /= 2

    with kernels.using("numba"):
        net = kept_net()
        net.forward()
        wanted = net.blobs["pool"].data / 2
        monkeypatch.setitem(CATALOGUE, "Pooling", Halved)
        net = kept_net()
        for _ in range(3):
            net.forward()
        np.testing.assert_array_equal(net.blobs["pool"].data, wanted)


PASSES = {
    "BatchNorm": "",
    "Scale": BIASED,
    "Bias": RENAMED,
    "ReLU": "",
    "ReLU, leaky": "relu_param { negative_slope: 0.25 }",
}
"""Layers that are one pass over a blob: BatchNorm has fixed statistics."""


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("name", PASSES)
def test_a_layer_of_one_pass_runs_as_a_job(name: str, in_place: bool, in_order: list[int]) -> None:
    """Behind a layer that takes no epilogue; of several images, and so large that threads share it."""
    shuffled = 'layer { name: "x" type: "ShuffleChannel" bottom: "data" top: "x" shuffle_channel_param { group: 3 } }'
    kind, y = name.split(",", maxsplit=1)[0], "x" if in_place else "y"
    text = shuffled + f'layer {{ name: "one" type: "{kind}" bottom: "x" top: "{y}" {PASSES[name]} }}'
    with kernels.using("numba"):
        net, other = net_of(text), watched(net_of(text))
        for shape in ((2, 6, 83, 97), (1, 6, 7, 5), (3, 6, 11, 5)):
            for one in (net, other):
                one.blobs["data"].reshape(*shape)
            for scale in (1, 3, 2):
                in_order.clear()
                for one in (net, other):
                    one.blobs["data"].data[...] = scale * np.random.default_rng(1).standard_normal(shape)
                    one.forward()
                assert_same(net, other)
            # a Scale's gradient needs what it would overwrite; BatchNorm alone subtracts the mean first
            assert in_order == [1 if kind == "BatchNorm" or (kind == "Scale" and in_place) else 2]


def test_a_relu_of_one_number_after_another_runs_as_a_job(in_order: list[int]) -> None:
    text = 'layer { name: "x" type: "Flatten" bottom: "data" top: "x" flatten_param { axis: 0 } }' + on("ReLU", "x")
    with kernels.using("numba"):
        net, other = net_of(text), watched(net_of(text))
        other.forward()
        for _ in range(3):
            in_order.clear()
            net.forward()
        assert net.blobs["x"].shape == (net.blobs["data"].count,)
        assert_same(net, other)
        assert in_order == [1]  # Flatten's top has the memory of its bottom


def test_a_layer_alone_that_was_empty_becomes_a_job(in_order: list[int]) -> None:
    """A layer without jobs is asked again after a change of shapes."""
    text = 'layer { name: "x" type: "Concat" bottom: "data" bottom: "data" top: "x" }'
    with kernels.using("numba"):
        net = net_of(text)
        for images in (0, 2):
            net.blobs["data"].reshape(images, 6, 7, 5)
            net.blobs["data"].data[...] = 1
            for _ in range(3):
                in_order.clear()
                net.forward()
        assert in_order == [2]
        assert (net.blobs["x"].data == 1).all()


def test_jobs_that_another_run_moved_are_moved_back(in_order: list[int]) -> None:
    """A part of a net has the jobs of the whole net, and moves them when it runs on other memory."""
    with kernels.using("numba"):
        net = kept_net()
        data = net.blobs["data"]
        other, mine = Blob(data.shape), Blob(data.shape)
        mine.share_data(data)
        other.data[...] = -3
        (wanted,) = [net.forward()[name].copy() for name in net.outputs for _ in range(3)][-1:]
        data.share_data(other)
        net.forward(end="pool")
        assert in_order[-1] == 2
        data.share_data(mine)
        np.testing.assert_array_equal(net.forward()[net.outputs[-1]], wanted)
        data.share_data(other)
        assert (net.forward()[net.outputs[-1]] != wanted).any()


WRITTEN = (
    'layer { name: "source" type: "Input" top: "source" input_param { shape { dim: 12 dim: 6 dim: 1 dim: 1 } } }\n'
    + 'layer { name: "w" type: "ReLU" bottom: "source" top: "w" }\n'
    + "".join(
        f'layer {{ name: "{name}" type: "Convolution" bottom: "data" top: "{name}" '
        f"convolution_param {{ num_output: {outputs} kernel_size: {kernel} }} }}\n"
        for name, outputs, kernel in (("panels", 12, 1), ("other", 3, 3))
    )
    + 'layer { name: "seen" type: "Silence" bottom: "w" }\n'
)


def test_weights_that_a_layer_before_writes(in_order: list[int]) -> None:
    """Arrays made from weights are not cached if a job of the same list writes the weights."""
    with kernels.using("numba"):
        net = net_of(WRITTEN)
        net.blobs["data"].reshape(1, 6, 5, 7)
        net.reshape()
        net.blobs["data"].data[...] = 1
        layer = net.layers[[one.name for one in net.layers].index("panels")]
        layer.blobs[0].share_data(net.blobs["w"])
        for i in range(1, 8):
            net.blobs["source"].data[...] = i
            net.forward()
            assert (net.blobs["panels"].data == 6 * i).all()
