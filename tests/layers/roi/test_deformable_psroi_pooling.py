"""DeformablePSROIPooling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from first import first
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase
from roi_cases import Case, cases, some_rois

from minicaffe.errors import LayerError, PrototxtWarning
from minicaffe.layers.roi.deformable_psroi_pooling import DeformablePsRoiPool, moved_means_by_definition

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]


def layer(param: str = "sample_per_part: 3 trans_std: 0.25", dim: int = 3, group: int = 2, part: int = 2) -> str:
    sizes = f"spatial_scale: 0.5 output_dim: {dim} group_size: {group} part_size: {part}"
    return f"type: 'DeformablePSROIPooling' deformable_psroi_pooling_param {{ {sizes} {param} }}"


def random_map(*shape: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def pool(operator: Any, x: np.ndarray, rois: np.ndarray, trans: np.ndarray | None) -> np.ndarray:
    y = np.empty((len(rois), *operator.bins(x.shape[1])), x.dtype)
    operator.pool(x, operator.moved_plan(rois, trans, x.shape[2:]), y, None)
    return y


def test_by_hand() -> None:
    """A roi of columns 0 to 3 and row 0: it lies from -0.5 to 3.5. Two samples, at columns -0.5 and 1.5, moved by a quarter of
    4."""
    x = np.array([[1.0, 2, 4, 8]]).reshape(1, 1, 1, 4)
    sizes = "spatial_scale: 1 output_dim: 1 group_size: 1 part_size: 1 sample_per_part: 2 trans_std: 0.5"
    text = f"type: 'DeformablePSROIPooling' deformable_psroi_pooling_param {{ {sizes} }}"
    still = LayerCase(text, x, [[0, 0, 0, 3, 0]], np.zeros((1, 2, 1, 1)))
    assert still.forward()[0].item() == (1 + 3) / 2  # rows -0.5 and 0 are row 0
    moved = LayerCase(text, x, [[0, 0, 0, 3, 0]], [[[[0.5]], [[0]]]])
    assert moved.forward()[0].item() == (1.5 + 6) / 2
    dx, drois, dtrans = moved.backward(np.full((1, 1, 1, 1), 8.0))
    assert dx.ravel().tolist() == [2, 2, 2, 2] and not drois.any()
    assert dtrans.ravel().tolist() == [8 * (1 + 4) / 2 * 4 * 0.5, 0]


def test_samples_off_the_map_are_left_out_of_the_divisor_too() -> None:
    x = np.arange(1.0, 5).reshape(1, 1, 1, 4)
    sizes = "spatial_scale: 1 output_dim: 1 group_size: 1 sample_per_part: 2 no_trans: true"
    text = f"type: 'DeformablePSROIPooling' deformable_psroi_pooling_param {{ {sizes} }}"
    assert LayerCase(text, x, [[0, 3, 0, 6, 0]]).forward()[0].item() == 3.5  # at 2.5 and 4.5, rows -0.5 and 0
    assert LayerCase(text, x, [[0, 9, 0, 12, 0]]).forward()[0].item() == 0


@pytest.mark.usefixtures("definitions_way")
@given(cases(groups=True), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_agrees_with_the_definition(case: Case, samples: int, part: int, by_class: bool) -> None:
    classes = case.x.shape[1] // case.pooled[0] ** 2 if by_class else 1
    trans = random_map(len(case.rois), 2 * classes, part, part).astype(np.float32)
    operator: Any = case.operator(DeformablePsRoiPool, part_size=part, sample_per_part=samples, trans_std=0.2)
    plan = operator.moved_plan(case.rois, trans, case.x.shape[2:])
    y = pool(operator, case.x, case.rois, trans)
    np.testing.assert_allclose(y, moved_means_by_definition(operator, case.x, plan), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("definitions_way")
@given(cases(groups=True, dtype=np.float64), st.integers(1, 3))
def test_backward_is_the_transpose(case: Case, samples: int) -> None:
    trans = random_map(len(case.rois), 2, 3, 3)
    operator: Any = case.operator(DeformablePsRoiPool, part_size=3, sample_per_part=samples, trans_std=0.2)
    y = pool(operator, case.x, case.rois, trans)
    dy = random_map(*y.shape)
    dx = np.full_like(case.x, np.nan)
    operator.pool_backward(dy, operator.moved_plan(case.rois, trans, case.x.shape[2:]), None, dx)
    assert (y * dy).sum() == pytest.approx((case.x * dx).sum(), abs=1e-9)


@pytest.mark.parametrize(("dim", "group", "part", "classes"), first(1, [(1, 2, 3, 1), (2, 2, 1, 2), (2, 1, 1, 1)]))
def test_gradient(dim: int, group: int, part: int, classes: int) -> None:
    trans = random_map(3, 2 * classes, part, part, seed=1)
    text = layer(dim=dim, group=group, part=part)
    LayerCase(text, random_map(2, dim * group**2, 3, 4), some_rois()[[0, 1, 3]], trans).check_gradient(step=1e-6)


@given(cases(groups=True, dtype=np.float64), st.integers(1, 4))
def test_without_offsets_or_with_zeros_it_is_one_function(case: Case, samples: int) -> None:
    still: Any = case.operator(DeformablePsRoiPool, sample_per_part=samples, no_trans=True)
    moved: Any = case.operator(DeformablePsRoiPool, sample_per_part=samples, part_size=2, trans_std=0.7)
    zeros = np.zeros((len(case.rois), 2, 2, 2))
    np.testing.assert_array_equal(pool(still, case.x, case.rois, None), pool(moved, case.x, case.rois, zeros))


def test_moving_all_bins_is_moving_the_roi() -> None:
    """A roi of 8 x 8 pixels of the map moved by a quarter of its size: 4 pixels of the image."""
    x, text = random_map(1, 12, 16, 18), layer(part=1)
    rois = np.array([[0.0, 4, 8, 19, 23]])
    trans = np.ones((1, 2, 1, 1))  # trans_std is 0.25
    moved = LayerCase(text, x, rois, trans).forward()[0]
    there = LayerCase(text, x, rois + np.array([0, 4, 4, 4, 4]), 0 * trans).forward()[0]
    np.testing.assert_allclose(moved, there, rtol=0, atol=1e-12)


def test_no_trans_takes_two_bottoms_and_a_third_one_gets_no_gradient() -> None:
    x, rois = random_map(2, 12, 7, 9), some_rois()
    two = LayerCase(layer("no_trans: true"), x, rois)
    three = LayerCase(layer("no_trans: true"), x, rois, random_map(5, 2, 2, 2))
    np.testing.assert_array_equal(two.forward()[0], three.forward()[0])
    assert not three.backward(random_map(5, 3, 2, 2))[2].any()


def test_new_offsets_are_seen_in_backward() -> None:
    x, rois, trans = random_map(2, 12, 7, 9), some_rois(), random_map(5, 2, 2, 2)
    case, dy = LayerCase(layer(), x, rois, trans), random_map(5, 3, 2, 2)
    case.forward()
    case.bottom[2].data[...] = trans + 1
    fresh = LayerCase(layer(), x, rois, trans + 1)
    fresh.forward()
    for one, other in zip(case.backward(dy), fresh.backward(dy), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("definitions_way")
def test_a_bad_pixel_spoils_only_the_bins_that_read_it() -> None:
    x, rois = random_map(1, 12, 7, 9), np.array([[0.0, 0, 0, 9, 9]])
    clean = LayerCase(layer("no_trans: true"), x, rois).forward()[0]
    x[0, 1 * 4 + 2, 6, 8] = np.nan
    np.testing.assert_array_equal(LayerCase(layer("no_trans: true"), x, rois).forward()[0], clean)


def test_a_second_reshape() -> None:
    case = LayerCase(layer(), random_map(2, 12, 7, 9), some_rois(), random_map(5, 2, 2, 2))
    case.forward()
    for blob, array in zip(case.bottom, (random_map(1, 12, 5, 6), some_rois(1)[:2], random_map(2, 6, 2, 2)), strict=True):
        blob.reshape(*array.shape)
        blob.data[...] = array
    operator: Any = case.layer.operator
    expected = pool(operator, *(blob.data for blob in case.bottom))
    np.testing.assert_allclose(case.forward()[0], expected, rtol=1e-12, atol=1e-14)
    assert case.backward(np.ones((2, 3, 2, 2)))[2].shape == (2, 6, 2, 2)


@pytest.mark.usefixtures("definitions_way")
def test_no_rois() -> None:
    case = LayerCase(layer(), random_map(2, 12, 7, 9), np.zeros((0, 5)), np.zeros((0, 2, 2, 2)))
    assert case.forward()[0].shape == (0, 3, 2, 2)
    case.bottom[0].diff[...] = 7
    assert not case.backward(np.zeros((0, 3, 2, 2)))[0].any()


@pytest.mark.parametrize(
    ("text", "trans", "message"),
    [
        (layer(), None, "needs the offsets as its third bottom, or no_trans: true"),
        (layer(part=0), (5, 2, 2, 2), "part_size must be > 0 unless no_trans is set, got 0"),
        (layer(part=3), (5, 2, 2, 2), r"must have shape \(R, 2 \* classes, part_size, part_size\) = \(5, 2 \* classes, 3, 3\)"),
        (layer(), (4, 2, 2, 2), r"= \(5, 2 \* classes, 2, 2\), got \(4, 2, 2, 2\)"),
        (layer(), (5, 3, 2, 2), r"got \(5, 3, 2, 2\)"),
        (layer(), (5, 4, 2, 2), r"the offsets are of 2 classes, which do not divide output_dim \(3\)"),
        (layer("sample_per_part: 0"), (5, 2, 2, 2), "sample_per_part must be > 0, got 0"),
        (layer("sample_per_part: 100000"), (5, 2, 2, 2), "sample_per_part must be at most 1000, got 100000"),
        (layer("trans_std: nan"), (5, 2, 2, 2), "trans_std must be finite, got nan"),
        (layer(dim=2), (5, 2, 2, 2), r"12 channels, but output_dim \* group_size\^2 = 2 \* 2\^2 = 8 are needed"),
    ],
)
def test_errors(text: str, trans: tuple[int, ...] | None, message: str) -> None:
    more = [] if trans is None else [np.zeros(trans)]
    with pytest.raises(LayerError, match=message):
        LayerCase(text, random_map(1, 12, 7, 9), some_rois(1), *more)


def test_another_pooled_size_has_no_effect_and_is_reported() -> None:
    with pytest.warns(PrototxtWarning, match=r"pooled_size \(7\) has no effect: there are group_size \(2\) bins a side"):
        case = LayerCase(layer("pooled_size: 7"), random_map(1, 12, 7, 9), some_rois(1), np.zeros((5, 2, 2, 2)))
    assert case.top[0].shape == (5, 3, 2, 2)
