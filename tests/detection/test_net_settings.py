"""A net computes by the settings that it was given, whatever other nets and use() say."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from click.testing import CliRunner
from detecting import DETECTOR
from detection_case import python_layer, settings, using

from minicaffe import TEST, TRAIN, Net
from minicaffe.cli import main
from minicaffe.data.settings import DetectionSettings, TestSettings, TrainSettings, current
from minicaffe.errors import SettingsError
from minicaffe.formats.prototxt import NetFile, parse_net
from minicaffe.mode import Phase
from minicaffe.parameters import weights_of
from minicaffe.porting.comparison import compare
from minicaffe.porting.merge_bn import merge_net
from minicaffe.proto import caffe_pb2
from minicaffe.scaling.batch.recipe import Recipe
from minicaffe.training.solver import SGDSolver

PROPOSAL = f"""
input: "scores" input_shape {{ dim: 1 dim: 18 dim: 6 dim: 8 }}
input: "deltas" input_shape {{ dim: 1 dim: 36 dim: 6 dim: 8 }}
input: "im_info" input_shape {{ dim: 1 dim: 3 }}
layer {{ name: "proposal" bottom: "scores" bottom: "deltas" bottom: "im_info" top: "rois"
  {python_layer("Proposal", feat_stride=16)} }}
"""
TARGETS = f"""
input: "scores" input_shape {{ dim: 1 dim: 18 dim: 6 dim: 8 }}
input: "gt_boxes" input_shape {{ dim: 1 dim: 5 }}
input: "im_info" input_shape {{ dim: 1 dim: 3 }}
input: "rois" input_shape {{ dim: 4 dim: 5 }}
layer {{ name: "anchors" bottom: "scores" bottom: "gt_boxes" bottom: "im_info"
  top: "labels" top: "targets" top: "inside" top: "outside" {python_layer("AnchorTarget", feat_stride=16)} }}
layer {{ name: "rois" bottom: "rois" bottom: "gt_boxes" top: "r" top: "l" top: "t" top: "i" top: "o"
  {python_layer("ProposalTarget", num_classes=3)} }}
"""
ROI_DATA = f"""
layer {{ name: "data" top: "data" top: "im_info" top: "gt_boxes" {python_layer("RoIData", num_classes=3)} }}
"""


def proposing(count: int) -> DetectionSettings:
    """Settings by which a net proposes at most count rois in TEST, and one more in TRAIN."""
    return DetectionSettings(
        test=TestSettings(rpn_post_nms_top_n=count, rpn_nms_thresh=1.0),
        train=TrainSettings(rpn_post_nms_top_n=count + 1, rpn_nms_thresh=1.0),
    )


def made(text: str = PROPOSAL, given: DetectionSettings | None = None, phase: Phase = TEST) -> Net:
    return Net(parse_net(text, "net.prototxt"), phase, settings=given)


def roi_count(net: Net) -> int:
    """How many rois the net proposes on made-up maps."""
    random = np.random.default_rng(4)
    for name in ("scores", "deltas"):
        net.blobs[name].data[...] = 0.1 * random.standard_normal(net.blobs[name].shape)
    net.blobs["im_info"].data[...] = (96, 128, 1)
    return len(net.forward()["rois"])


def test_two_nets_each_compute_by_their_settings() -> None:
    with settings(test_rpn_post_nms_top_n=9):
        three, five, others = made(given=proposing(3)), made(given=proposing(5), phase=TRAIN), made()
    assert [roi_count(net) for net in (three, five, others, three)] == [3, 6, 9, 3]
    assert three.settings == proposing(3) and others.settings.test.rpn_post_nms_top_n == 9
    assert current() == DetectionSettings()


def test_threads_make_and_run_nets_of_different_settings() -> None:
    together = Barrier(4)

    def run(count: int) -> list[int]:
        together.wait(timeout=60)
        return [roi_count(made(given=proposing(count))) for _ in range(3)]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, (2, 3, 4, 5))) == [[2] * 3, [3] * 3, [4] * 3, [5] * 3]


def test_every_layer_of_the_family_takes_its_nets_settings() -> None:
    given = DetectionSettings(train=TrainSettings(scales=(77,), max_size=99, batch_size=2, fg_fraction=1.0, rpn_batchsize=6))
    net = made(TARGETS, given, TRAIN)
    net.blobs["gt_boxes"].data[...] = (10, 10, 90, 80, 1)
    net.blobs["im_info"].data[...] = (96, 128, 1)
    net.blobs["rois"].data[...] = [[0, 5, 5, 80, 70], [0, 60, 60, 70, 70], [0, 0, 0, 20, 20], [0, 90, 5, 120, 20]]
    net.forward()
    assert net.blobs["l"].shape == (2, 1, 1, 1)
    assert int((net.blobs["labels"].data >= 0).sum()) <= 6
    assert made(ROI_DATA, given, TRAIN).blobs["data"].shape == (1, 3, 77, 99)
    assert all(layer.settings is given for layer in net.layers)


def test_a_net_keeps_the_settings_that_use_had_set() -> None:
    with using(proposing(4)):
        net = made()
    assert net.settings == proposing(4) and roi_count(net) == 4


def test_a_solver_gives_its_nets_the_settings() -> None:
    param = caffe_pb2.SolverParameter(base_lr=1, lr_policy="fixed", test_iter=[1], test_interval=1)
    param.net_param.CopyFrom(parse_net(PROPOSAL).param)
    solver = SGDSolver(param, settings=proposing(3))
    assert [roi_count(net) for net in (solver.net, *solver.test_nets)] == [4, 3]
    assert solver.settings is solver.net.settings


def test_a_recipe_sent_to_a_worker_gives_its_net_the_settings() -> None:
    recipe = pickle.loads(pickle.dumps(Recipe("detector.prototxt", DETECTOR, proposing(3), proposals="boxes.npy")))
    weights = weights_of(Net(parse_net(DETECTOR), TEST))
    assert recipe.pipeline(weights).net.settings == proposing(3)
    assert current() == DetectionSettings()


def test_nets_made_from_a_net_have_its_settings(tmp_path: Path) -> None:
    (tmp_path / "b.prototxt").write_text(PROPOSAL)
    net = made(given=proposing(3))
    assert merge_net(net)[0].settings == proposing(3)
    assert compare(net, tmp_path / "b.prototxt").same


def test_the_commands_leave_the_current_settings_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(PROPOSAL)
    Path("net.yml").write_text("TEST: {RPN_POST_NMS_TOP_N: 37}")
    result = CliRunner().invoke(main, ["summary", "net.prototxt", "--cfg", "net.yml"])
    assert "rois 37x5" in result.output, result.output
    assert current() == DetectionSettings()


@pytest.mark.parametrize("given", ["end2end.yml", {"TEST": {"NMS": 0.3}}])
def test_a_net_takes_settings_only(given: object) -> None:
    file: NetFile = parse_net(PROPOSAL, "net.prototxt")
    with pytest.raises(SettingsError, match=r"settings must be DetectionSettings, got .*read_settings"):
        Net(file, TEST, settings=given)  # type: ignore[arg-type]
