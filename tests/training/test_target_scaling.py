"""Target means and stds folded into the box layers around a snapshot."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.data.settings import DetectionSettings
from minicaffe.errors import LayerError
from minicaffe.formats.prototxt import parse_net, parse_solver
from minicaffe.mode import TRAIN
from minicaffe.net import Net
from minicaffe.training.solver import SGDSolver
from minicaffe.training.target_scaling import fold, folded, per_output, unfold

MEANS, STDS = (0.5, -0.25, 1.0, 2.0), (0.1, 0.2, 0.4, 0.5)


def settings(**train) -> DetectionSettings:
    """Settings with precomputed statistics of MEANS and STDS, for the RPN too, and changes to TRAIN."""
    defaults = DetectionSettings()
    given = {
        "bbox_normalize_targets_precomputed": True,
        "bbox_normalize_means": MEANS,
        "bbox_normalize_stds": STDS,
        "rpn_normalize_means": MEANS,
        "rpn_normalize_stds": STDS,
    }
    return dataclasses.replace(defaults, train=dataclasses.replace(defaults.train, **{**given, **train}))


def net(layers: str, shape: str = "dim: 2 dim: 3") -> Net:
    made = Net(parse_net(f'layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {shape} }} }} }} {layers}'), TRAIN)
    rng = np.random.default_rng(1)
    for blobs in made.params.values():
        for blob in blobs:
            blob.data[...] = rng.standard_normal(blob.shape)
    for name in made.inputs:
        made.blobs[name].data[...] = rng.standard_normal(made.blobs[name].shape)
    return made


def box_layer(outputs: int, name: str = "bbox_pred", rest: str = "") -> str:
    return (
        f'layer {{ name: "{name}" type: "InnerProduct" bottom: "x" top: "{name}" '
        f"inner_product_param {{ num_output: {outputs} {rest} }} }}"
    )


@pytest.mark.parametrize("classes", [2, 5])
def test_inside_the_block_the_net_gives_unnormalised_boxes_and_after_it_the_very_same_weights(classes):
    boxes = net(box_layer(4 * classes) + box_layer(7, "cls_score"))
    before = {name: [blob.data.copy() for blob in blobs] for name, blobs in boxes.params.items()}
    normalised = boxes.forward()["bbox_pred"].copy()
    with folded(boxes, settings()) as names:
        assert names == ["bbox_pred"]
        found = boxes.forward()["bbox_pred"].copy()
    np.testing.assert_allclose(found, normalised * np.tile(STDS, classes) + np.tile(MEANS, classes), rtol=1e-5, atol=1e-5)
    for name, blobs in boxes.params.items():
        for blob, value in zip(blobs, before[name], strict=True):
            np.testing.assert_array_equal(blob.data, value)


@pytest.mark.parametrize(("name", "found"), [("bbox_pred_4", True), ("bbox_pred_pre", False), ("old_bbox_pred", False)])
def test_a_box_layer_that_got_a_number_for_other_classes(name, found):
    with folded(net(box_layer(8, name)), settings()) as names:
        assert names == [name] * found


def test_weights_are_put_back_after_an_error_too():
    boxes = net(box_layer(8))
    before = boxes.params["bbox_pred"][0].data.copy()
    with pytest.raises(RuntimeError), folded(boxes, settings()):
        raise RuntimeError("disk full")
    np.testing.assert_array_equal(boxes.params["bbox_pred"][0].data, before)


@pytest.mark.parametrize("layer", ["PSROIPooling", "PSROIAlign"])
def test_rfcn_bbox_repeats_each_value_for_its_group_cells(layer):
    from minicaffe.layers import CATALOGUE

    if layer not in CATALOGUE:
        pytest.skip(f"{layer} is not built in yet")
    param = "psroi_pooling_param" if layer == "PSROIPooling" else "psroi_align_param"
    boxes = net(
        'layer { name: "rois" type: "Input" top: "rois" input_param { shape { dim: 1 dim: 5 } } }'
        'layer { name: "rfcn_bbox" type: "Convolution" bottom: "x" top: "maps" '
        "convolution_param { num_output: 72 kernel_size: 1 } }"
        'layer { name: "look" type: "Silence" bottom: "maps" }'
        f'layer {{ name: "pool" type: "{layer}" bottom: "maps" bottom: "rois" top: "boxes" '
        f"{param} {{ spatial_scale: 1 output_dim: 8 group_size: 3 }} }}",
        "dim: 1 dim: 2 dim: 12 dim: 15",
    )
    boxes.blobs["rois"].data[...] = [[0, 1, 1, 10, 9]]
    normalised = boxes.forward()["boxes"].copy()
    with folded(boxes, settings()) as names:
        assert names == ["rfcn_bbox"]
        found = boxes.forward()["boxes"].copy()
    stds, means = (np.tile(values, 2).reshape(1, 8, 1, 1) for values in (STDS, MEANS))
    np.testing.assert_allclose(found, normalised * stds + means, rtol=1e-4, atol=1e-4)


def test_rpn_bbox_pred_is_folded_where_the_settings_normalise_its_targets():
    rpn = net(
        'layer { name: "rpn_bbox_pred" type: "Convolution" bottom: "x" top: "y" '
        "convolution_param { num_output: 12 kernel_size: 1 } }",
        "dim: 1 dim: 2 dim: 3 dim: 4",
    )
    with folded(rpn, settings()) as names:
        assert names == []
    normalised = rpn.forward()["y"].copy()
    with folded(rpn, settings(rpn_normalize_targets=True)) as names:
        assert names == ["rpn_bbox_pred"]
        stds, means = (np.tile(values, 3).reshape(1, 12, 1, 1) for values in (STDS, MEANS))
        np.testing.assert_allclose(rpn.forward()["y"], normalised * stds + means, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("off", ["bbox_reg", "bbox_normalize_targets", "bbox_normalize_targets_precomputed"])
def test_nothing_is_folded_where_targets_are_not_normalised(off):
    with folded(net(box_layer(8)), settings(**{off: False})) as names:
        assert names == []


def test_the_statistics_that_the_data_layer_measured_serve_where_none_are_precomputed():
    boxes = net(box_layer(8))
    boxes.layers[0].bbox_means, boxes.layers[0].bbox_stds = np.arange(8.0), np.arange(1.0, 9)
    normalised = boxes.forward()["bbox_pred"].copy()
    with folded(boxes, settings(bbox_normalize_targets_precomputed=False)) as names:
        assert names == ["bbox_pred"]
        np.testing.assert_allclose(boxes.forward()["bbox_pred"], normalised * np.arange(1, 9) + np.arange(8), rtol=1e-5)


def test_unfold_undoes_fold():
    boxes = net(box_layer(8))
    before = [blob.data.copy() for blob in boxes.params["bbox_pred"]]
    with folded(boxes, settings()):
        unfold(boxes, settings())
        for blob, value in zip(boxes.params["bbox_pred"], before, strict=True):
            np.testing.assert_allclose(blob.data, value, rtol=1e-5, atol=1e-6)


def test_a_class_without_examples_has_std_0_and_stays_0():
    boxes = net(box_layer(8))
    boxes.layers[0].bbox_means, boxes.layers[0].bbox_stds = np.zeros(8), np.repeat([0.0, 0.5], 4)
    measured = settings(bbox_normalize_targets_precomputed=False)
    with folded(boxes, measured):
        unfold(boxes, measured)
        unfolded = [blob.data.copy() for blob in boxes.params["bbox_pred"]]
    for value, blob in zip(unfolded, boxes.params["bbox_pred"], strict=True):
        np.testing.assert_array_equal(value[:4], 0)
        np.testing.assert_allclose(value[4:], blob.data[4:], rtol=1e-6)


def test_fold_by_hand():
    weight, bias = fold([[1.0, 2.0], [3.0, 4.0]], [10.0, 20.0], [1.0, 2.0], [0.5, 0.25])
    assert weight.tolist() == [[0.5, 1.0], [0.75, 1.0]] and bias.tolist() == [6.0, 7.0]


def test_per_output_by_hand():
    assert per_output((1, 2, 3, 4), 8).tolist() == [1, 2, 3, 4, 1, 2, 3, 4]
    assert per_output((1, 2, 3, 4), 16, cells=2).tolist() == [1, 1, 2, 2, 3, 3, 4, 4] * 2


@given(st.integers(1, 5), st.integers(1, 4))
def test_per_output_gives_channel_c_its_coordinate(classes, group):
    outputs = 4 * classes * group**2
    spread = per_output((0, 1, 2, 3), outputs, group**2)
    np.testing.assert_array_equal(spread, np.arange(outputs) // group**2 % 4)


@pytest.mark.parametrize(
    ("layers", "train", "text"),
    [
        (
            box_layer(6),
            {},
            'InnerProduct layer "bbox_pred": the target means and stds do not fit: 6 outputs are not',
        ),
        (box_layer(8, rest="bias_term: false"), {}, "needs a bias: a snapshot folds the target means into it"),
    ],
)
def test_errors(layers, train, text):
    with pytest.raises(LayerError, match=text), folded(net(layers), settings(**train)):
        pass


def test_a_solvers_snapshot_is_folded_and_its_state_goes_on_unfolded(tmp_path):
    text = (
        f'base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 snapshot_prefix: "{tmp_path}/run" random_seed: 5 net_param {{ '
        'layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 3 } data_filler { value: 0.5 } } }'
        'layer { name: "label" type: "DummyData" top: "label" dummy_data_param { shape { dim: 2 } data_filler { value: 3 } } }'
        + box_layer(8, rest='weight_filler { type: "gaussian" }')
        + 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "bbox_pred" bottom: "label" top: "loss" } }'
    )
    solver = SGDSolver(parse_solver(text), settings=settings())
    solver.step(2)
    trained = [blob.data.copy() for blob in solver.net.params["bbox_pred"]]
    model = solver.snapshot()
    np.testing.assert_array_equal(solver.net.params["bbox_pred"][0].data, trained[0])
    reader = net(box_layer(8))
    reader.copy_from(model)
    weight, bias = (blob.data for blob in reader.params["bbox_pred"])
    np.testing.assert_allclose(weight, trained[0] * np.tile(STDS, 2)[:, None], rtol=1e-6)
    np.testing.assert_allclose(bias, trained[1] * np.tile(STDS, 2) + np.tile(MEANS, 2), rtol=1e-6)
    resumed = SGDSolver(parse_solver(text), settings=settings())
    resumed.restore(tmp_path / "run_iter_2.solverstate")
    for blob, value in zip(resumed.net.params["bbox_pred"], trained, strict=True):
        np.testing.assert_allclose(blob.data, value, rtol=1e-5, atol=1e-6)
