"""Which fork? Types that forks disagree on: the fields decide, then the stored blobs, then fork=; the choice is shown."""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from golden import FORKS as RECORDED
from layer_case import LayerCase
from recordings import needs

from minicaffe import TEST, Net, get_solver
from minicaffe.cli import COMMANDS, command_of, main
from minicaffe.detection import load
from minicaffe.detection.ssd import ssd_layer
from minicaffe.errors import Error, LayerError, PrototxtWarning, WeightsError
from minicaffe.formats.forks import fork_named, fork_names, forks
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers.norm.batch_norm_layouts import BVLC, NVIDIA_15, NVIDIA_17
from minicaffe.parameters import weight_name
from minicaffe.porting.comparison import compare
from minicaffe.porting.retarget import retarget
from minicaffe.scaling.batch.recipe import Recipe

NET = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 4 dim: 5 } } }
layer { name: "it" type: "%s" bottom: "x" top: "y" %s }
"""
PSPNETS = "BN of PSPNet: "
SEGNETS = "BN of SegNet: "


def net(kind: str, fields: str = "", fork: str = "", phase: int = TEST) -> Net:
    return Net(parse_net(NET % (kind, fields)), phase, fork=fork)


def choice(made: Net) -> str:
    return str(made.forks.get("it", ""))


def stored(folder: Path, kind: str, fields: str) -> Path:
    """Weights of the layer with these fields."""
    made = net(kind, fields)
    for blob in made.layer_dict["it"].blobs:
        blob.data[...] = 2
    made.save(folder / "w.caffemodel")
    return folder / "w.caffemodel"


# The names.


def test_a_fork_is_named_as_the_recorded_cases_and_its_repository_are() -> None:
    assert fork_named("") == ""
    assert fork_named("pspnet") == fork_named("hszhao/PSPNet") == fork_named("HSZHAO/pspnet") == "pspnet"
    for fork in forks():
        assert fork_named(fork) == fork


@needs(RECORDED)
def test_every_recorded_fork_has_its_name() -> None:
    folders = [path.name.partition("@")[2] for path in RECORDED.iterdir()]
    assert {fork_named(name) for name in filter(None, folders)} <= set(forks())
    told = re.findall(r"^fork: ([\w-]+/[\w.-]+)", (RECORDED / "README.md").read_text(encoding="utf-8"), flags=re.M)
    assert len(told) > 80
    assert {name.lower() for name in told} <= {name.split(",")[0] for name in fork_names()}


def test_an_unknown_fork_is_an_error_that_says_where_the_known_ones_are() -> None:
    with pytest.raises(Error, match=r'no fork is called "pspnt": did you mean pspnet\? `minicaffe forks` lists all'):
        net("BN", fork="pspnt")
    with pytest.raises(Error, match=r'no fork is called "12345": `minicaffe forks` lists all'):
        net("BN", fork="12345")


# Fields, then the fork.


@pytest.mark.parametrize(
    ("kind", "fields", "fork", "told", "blobs"),
    [
        ("BN", "bn_param { momentum: 0.5 }", "segnet", PSPNETS + "bn_param has momentum", 4),
        ("BN", "bn_param { bn_mode: INFERENCE }", "pspnet", SEGNETS + "bn_param has bn_mode", 2),
        ("BN", "param {} param {} param {}", "segnet", PSPNETS + "3 param blocks", 4),
        ("BN", 'top: "m" top: "v"', "", SEGNETS + "3 tops", 2),
        ("BN", "", "pspnet", PSPNETS + "fork pspnet", 4),
        ("BN", "", "happynear/caffe-windows", PSPNETS + "fork happynear", 4),
        ("BN", "", "noh", SEGNETS + "fork noh", 2),
        ("Normalize", "norm_param {}", "happynear", "Normalize of SSD: norm_param", 1),
        ("Normalize", "normalize_param {}", "ssd", "Normalize of happynear: normalize_param", 0),
        ("Normalize", 'top: "n"', "ssd", "Normalize of happynear: 2 tops", 0),
        ("Normalize", "param { lr_mult: 1 }", "happynear", "Normalize of SSD: 1 param blocks", 1),
        ("Normalize", "", "refinedet", "Normalize of SSD: fork refinedet", 1),
        ("Normalize", "", "happynear", "Normalize of happynear: fork happynear", 0),
        ("BatchNorm", "", "", "BatchNorm of BVLC Caffe: no other sign", 3),
        ("BatchNorm", "", "pspnet", "BatchNorm of BVLC Caffe: no other sign", 3),
        ("BatchNorm", "", "nv15", "BatchNorm of NVIDIA Caffe 0.15: fork nv15", 5),
        ("BatchNorm", "", "nv17", "BatchNorm of NVIDIA Caffe 0.17: fork nv17", 3),
        ("BatchNorm", "batch_norm_param { scale_bias: true }", "nv15", "NVIDIA Caffe 0.17: batch_norm_param has scale_bias", 5),
        ("BatchNorm", "batch_norm_param { scale_filler {} }", "", "NVIDIA Caffe 0.17: batch_norm_param has scale_filler", 5),
        ("BatchNorm", "batch_norm_param { bias_filler {} }", "nv15", "NVIDIA Caffe 0.15: batch_norm_param has bias_filler", 5),
        ("BatchNorm", "param {} " * 5, "nv17", "NVIDIA Caffe 0.15: 5 param blocks", 5),
        ("BatchNorm", "param {} " * 5, "intel", "Intel Caffe: 5 param blocks", 5),
        ("BatchNorm", "param {} " * 4, "", "Intel Caffe: 4 param blocks", 4),
        ("Upsample", "", "segnet", "Upsample of MobileNet-YOLO: 1 bottom", 0),
        ("ReLU", "", "segnet", "", 0),
    ],
)
def test_the_fields_decide_and_then_the_fork(kind: str, fields: str, fork: str, told: str, blobs: int) -> None:
    made = net(kind, fields, fork)
    assert choice(made).endswith(told)
    assert (choice(made) == "") == (told == "")
    assert len(made.layer_dict["it"].blobs) == blobs
    made.forward()


OPEN = {
    "BN": r"it may be PSPNet's \(4 blobs: slope, bias, mean, variance; --fork pspnet\) or SegNet's \(2 blobs: scale, shift;"
    r" --fork segnet\), and the files do not show which: load its weights first, or write .*, or give --fork NAME, or Net's "
    r"fork=",
    "Normalize": r"it may be SSD's \(1 blob: scale; --fork ssd\) or happynear's \(no blobs, .*; --fork happynear\), and the"
    r" files do not show which: load its weights first, or write norm_param \{\} for SSD's, normalize_param \{\} for "
    r"happynear's, or give",
}


@pytest.mark.parametrize("fork", ["", "yolov2"])
@pytest.mark.parametrize("kind", OPEN)
def test_where_it_stays_open_the_net_is_refused_with_the_candidates(kind: str, fork: str) -> None:
    made = net(kind, fork=fork)
    assert choice(made) == ""
    assert made.layer_dict["it"].is_ambiguous
    with pytest.raises(LayerError, match=f'{kind} layer "it": {OPEN[kind]}'):
        made.forward()


# The stored blobs, before the fork.


@pytest.mark.parametrize(
    ("kind", "fields", "fork", "told"),
    [
        ("BN", "bn_param { frozen: false }", "pspnet", PSPNETS + "fork pspnet"),
        ("BN", "bn_param { frozen: false }", "", PSPNETS + "4 stored blobs"),
        ("BN", "bn_param { bn_mode: LEARN }", "", SEGNETS + "2 stored blobs"),
        ("Normalize", "norm_param {}", "", "Normalize of SSD: 1 stored blobs"),
        ("Normalize", "normalize_param {}", "", "Normalize of happynear: 0 stored blobs"),
        ("BatchNorm", "param {} " * 5, "", "BatchNorm of NVIDIA Caffe 0.15: 5 stored blobs"),
        ("BatchNorm", "batch_norm_param { scale_bias: true }", "", "BatchNorm of NVIDIA Caffe 0.17: 5 stored blobs"),
        ("BatchNorm", "batch_norm_param { scale_bias: true }", "nv15", "BatchNorm of NVIDIA Caffe 0.17: 5 stored blobs"),
        ("BatchNorm", "param {} " * 4, "", "BatchNorm of Intel Caffe: 4 stored blobs"),
        ("BatchNorm", "batch_norm_param { scale_bias: true }", "intel", "BatchNorm of Intel Caffe: 5 stored blobs"),
        ("BatchNorm", "", "nv15", "BatchNorm of BVLC Caffe: 3 stored blobs"),
        ("BatchNorm", "", "nv17", "BatchNorm of NVIDIA Caffe 0.17: fork nv17"),
    ],
)
def test_the_stored_blobs_decide_before_the_fork(kind: str, fields: str, fork: str, told: str, tmp_path: Path) -> None:
    made = net(kind, fork=fork)
    made.copy_from(stored(tmp_path, kind, fields))
    assert choice(made) == told
    assert all((blob.data == 2).all() for blob in made.layer_dict["it"].blobs)
    made.forward()
    follower = net(kind, fork=fork)
    follower.share_with(made)
    assert len(follower.layer_dict["it"].blobs) == len(made.layer_dict["it"].blobs)
    follower.forward()


@pytest.mark.parametrize(
    ("kind", "fields", "fork", "told"),
    [
        ("BN", "bn_param { frozen: false }", "segnet", PSPNETS + "4 stored blobs"),
        ("BN", "bn_param { bn_mode: LEARN }", "pspnet", SEGNETS + "2 stored blobs"),
        ("Normalize", "norm_param {}", "happynear", "Normalize of SSD: 1 stored blobs"),
        ("Normalize", "normalize_param {}", "ssd", "Normalize of happynear: 0 stored blobs"),
    ],
)
def test_blobs_that_the_fork_does_not_have_win_with_a_warning(
    kind: str, fields: str, fork: str, told: str, tmp_path: Path
) -> None:
    made = net(kind, fork=fork)
    with pytest.warns(PrototxtWarning, match=f"it is {told.split()[2][:-1]}'s, whatever the fork {fork} has"):
        made.copy_from(stored(tmp_path, kind, fields))
    assert choice(made) == told
    made.forward()


@pytest.mark.parametrize(
    ("kind", "mine", "theirs", "message"),
    [
        ("BN", "bn_param { bn_mode: LEARN }", "bn_param { eps: 1 }", "SegNet's, with the blobs scale, shift, .* slope, bias"),
        ("Normalize", "normalize_param {}", "norm_param {}", "happynear's, without blobs, but the weights store 1, as SSD"),
        (
            "BatchNorm",
            "batch_norm_param { scale_bias: true }",
            "param {} " * 5,
            "NVIDIA's of 0.17, with the blobs mean, .*NVIDIA's of 0.15: scale, bias, mean, variance, correction",
        ),
    ],
)
def test_weights_of_another_kind_than_the_fields_name_are_refused(
    kind: str, mine: str, theirs: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(WeightsError, match=f'{kind} layer "it": .*{message}'):
        net(kind, mine).copy_from(stored(tmp_path, kind, theirs))


@pytest.mark.parametrize("count", [1, 2, 6])
def test_a_batch_norm_of_a_number_of_blobs_that_no_fork_has(count: int) -> None:
    layouts = r"BVLC's has 3 blobs \(mean and variance as sums, factor\), Intel's 4 or 5, NVIDIA's of 0.15 5, of 0.17 3 or 5"
    with pytest.raises(WeightsError, match=f'BatchNorm layer "it": {layouts}, but the weights store {count}'):
        net("BatchNorm").take_layouts([("it", [(3,)] * count)])


@pytest.mark.parametrize(("fork", "layout"), [("nv15", NVIDIA_15), ("nv17", NVIDIA_17)])
def test_one_channel_in_5_blobs_is_of_the_fork(fork: str, layout: Sequence[str]) -> None:
    def taken(fork: str) -> Sequence[str]:
        case = LayerCase('type: "BatchNorm" batch_norm_param { scale_filler {} }', np.ones((4, 1)), fork=fork)
        case.layer.adopt_layout([(1,)] * 5)
        return [weight_name(case.layer, i) for i in range(5)]

    assert taken(fork) == list(layout)
    with pytest.raises(WeightsError, match=r"of one channel, 5 blobs may be NVIDIA 0.15's or 0.17's: give --fork nv15 or nv17"):
        taken("")


def test_a_net_without_a_sign_that_shares_with_an_open_one_stays_open() -> None:
    first, second = net("Normalize"), net("Normalize")
    second.share_with(first)
    assert second.layer_dict["it"].is_ambiguous


# Where the fork is passed on.


def test_the_fork_goes_with_a_solvers_nets_and_their_snapshots(tmp_path: Path) -> None:
    data = 'layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 3 } } }'
    loss = 'layer { name: "l" type: "Reduction" bottom: "y" top: "l" loss_weight: 1 }'
    (tmp_path / "net.prototxt").write_text(data + NET.splitlines()[2] % ("BN", "") + loss)
    (tmp_path / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" test_iter: 1 test_interval: 9 display: 0'
        f' test_initialization: false snapshot_prefix: "{tmp_path}/s"'
    )
    made = get_solver(tmp_path / "solver.prototxt", fork="segnet")
    assert [str(one.forks["it"]) for one in (made.net, *made.test_nets)] == [SEGNETS + "fork segnet"] * 2
    made.step(1)
    made.snapshot()
    again = get_solver(tmp_path / "solver.prototxt", fork="segnet")
    again.restore(tmp_path / "s_iter_1.solverstate")
    np.testing.assert_array_equal(again.net.params["it"][0].data, made.net.params["it"][0].data)


DETECTOR = """
layer { name: "in" type: "Input" top: "data" top: "im_info" input_param {
  shape { dim: 1 dim: 3 dim: 32 dim: 32 } shape { dim: 1 dim: 3 } } }
layer { name: "maps" type: "Convolution" bottom: "data" top: "maps" convolution_param {
  num_output: 6 kernel_size: 16 stride: 16 weight_filler { type: "xavier" } } }
layer { name: "parts" type: "Slice" bottom: "maps" top: "scores" top: "deltas" slice_param { slice_point: 2 } }
layer { name: "proposal" type: "Proposal" bottom: "scores" bottom: "deltas" bottom: "im_info" top: "rois"
  proposal_param { ratio: 1 scale: 1 post_nms_topn: 3 } }
layer { name: "pool" type: "ROIPooling" bottom: "maps" bottom: "rois" top: "pool" roi_pooling_param {
  pooled_h: 1 pooled_w: 1 spatial_scale: 0.0625 } }
layer { name: "cls_score" type: "InnerProduct" bottom: "pool" top: "cls_score" inner_product_param { num_output: 2 } }
layer { name: "cls_prob" type: "Softmax" bottom: "cls_score" top: "cls_prob" }
layer { name: "bbox_pred" type: "InnerProduct" bottom: "pool" top: "bbox_pred" inner_product_param { num_output: 8 } }
"""


def test_the_fork_goes_with_a_detector_and_its_recipe(tmp_path: Path) -> None:
    path = tmp_path / "detector.prototxt"
    path.write_text(DETECTOR)
    with pytest.raises(LayerError, match="it may be PVANET's"):
        load(path)
    detector = load(path, fork="pvanet")
    assert str(detector.net.forks["proposal"]) == "Proposal of PVANET: fork pvanet"
    detector(np.zeros((32, 32, 3), np.uint8))
    with pytest.raises(Error, match=r"a Net already has a fork: build it with Net\(fork=...\)"):
        load(detector.net, fork="pvanet")
    recipe = pickle.loads(pickle.dumps(Recipe(str(path), DETECTOR, fork="happynear")))
    weights = {name: [blob.data for blob in blobs] for name, blobs in detector.net.params.items()}
    assert str(recipe.pipeline(weights).net.forks["proposal"]) == "Proposal of happynear: fork happynear"


def test_yolov2s_detection_output_is_no_ssds(tmp_path: Path) -> None:
    """Its rows are centres and sizes, its classes without a background."""
    text = NET % ("DetectionOutput", "detection_output_param { side: 4 num_box: 1 num_classes: 2 biases: 1 biases: 1 }")
    text = text.replace("dim: 2 dim: 3 dim: 4 dim: 5", "dim: 1 dim: 7 dim: 4 dim: 4")
    made = Net(parse_net(text), TEST)
    assert choice(made) == "DetectionOutput of caffe-yolov2: 1 bottom"
    assert ssd_layer(made) is None
    (tmp_path / "net.prototxt").write_text(text)
    with pytest.raises(Error, match="no class count found"):
        retarget(tmp_path / "net.prototxt", 4)


def test_the_fork_goes_with_a_comparison(tmp_path: Path) -> None:
    text = NET % ("Normalize", "")
    for name in ("a", "b"):
        (tmp_path / name).write_text(text)
    assert compare(tmp_path / "a", tmp_path / "b", fork="happynear").same
    with pytest.raises(LayerError, match="it may be SSD's"):
        compare(tmp_path / "a", tmp_path / "b")


def test_the_fork_goes_with_a_layer_inside_a_torch_module() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch (the extra torch) is not installed")
    from minicaffe.torch import to_torch

    made = net("Normalize", "", "happynear")
    x = np.random.default_rng(1).normal(size=(2, 3, 4, 5)).astype(np.float32)
    expected = made.forward(x=x)["y"]
    np.testing.assert_allclose(to_torch(made)(torch.from_numpy(x))["y"].detach().numpy(), expected, rtol=1e-6)


NO_NET = (
    "layers new forks device-query docs doctor dump film upgrade retarget "
    "convert-imageset convert-annoset compute-image-mean parse-log script"
)
"""Commands that make no net, or make the user's script do."""


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - set(NO_NET.split()) - {"install-caffe-command"}))
def test_each_command_that_makes_a_net_has_the_option(name: str) -> None:
    assert any("--fork" in param.opts for param in command_of(name).params if isinstance(param, click.Option))


# Where the fork is shown.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two BNs and a Normalize without a sign, and weights of PSPNet's and SSD's."""
    monkeypatch.chdir(tmp_path)
    more = 'layer { name: "two" type: "BN" bottom: "y" top: "z" %s }'
    more += ' layer { name: "n" type: "Normalize" bottom: "z" top: "n" %s }'
    (tmp_path / "net.prototxt").write_text(NET % ("BN", "") + more % ("", ""))
    told = Net(parse_net(NET % ("BN", "bn_param { eps: 1 }") + more % ("bn_param { eps: 1 }", "norm_param {}")), TEST)
    told.save("w.caffemodel")
    return tmp_path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments)
    return result.output + result.stderr


def test_summary_says_whose_layers_they_are(folder: Path) -> None:
    told = run("summary", "net.prototxt", "--fork", "segnet")
    assert "BN of SegNet: fork segnet (2 layers)\n" in told
    assert (
        "Normalize of SSD's (1 blob: scale; --fork ssd) or happynear's (no blobs, each position by itself; --fork happynear):"
        " its weights will decide (n)\n"
    ) in told
    assert 'no fork is called "gog"' in run("summary", "net.prototxt", "--fork", "gog")


def test_dump_says_what_the_stored_blobs_tell(folder: Path) -> None:
    told = run("dump", "w.caffemodel", "--list")
    assert "BN of PSPNet: 4 stored blobs (2 layers)\n" in told
    assert "Normalize of SSD: 1 stored blobs (n)\n" in told


def test_dump_of_batch_norms(tmp_path: Path) -> None:
    for fields, whose in (
        ("", "BVLC Caffe, or of NVIDIA Caffe 0.17 without scale: 3 stored blobs"),
        ("param {} " * 5, "NVIDIA Caffe 0.15: 5 stored blobs"),
        ("batch_norm_param { scale_bias: true }", "NVIDIA Caffe 0.17: 5 stored blobs"),
    ):
        assert f"BatchNorm of {whose} (it)\n" in run("dump", str(stored(tmp_path, "BatchNorm", fields)), "--list")


def test_the_trace_says_it_in_the_layers_panel(folder: Path) -> None:
    assert "written" in run("trace", "net.prototxt", "w.caffemodel", "-o", "t.html")
    page = Path("t.html").read_text(encoding="utf-8")
    assert page.count('"fork":"BN of PSPNet: 4 stored blobs"') == 2
    assert '"fork":"Normalize of SSD: 1 stored blobs"' in page
    assert '"fork":""' in page


def test_the_layouts_are_three() -> None:
    assert (len(BVLC), len(NVIDIA_17), len(NVIDIA_15)) == (3, 5, 5)
