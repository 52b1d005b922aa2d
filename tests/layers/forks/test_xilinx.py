"""DeephiResize and FixedNeuron."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase, check_a_second_reshape
from neuron_checks import normal
from numpy.typing import NDArray

from minicaffe.errors import LayerError
from minicaffe.mode import TEST, TRAIN

pytestmark = pytest.mark.usefixtures("device")

Array = NDArray[Any]


def resize_text(block: str) -> str:
    return f'type: "DeephiResize" deephi_resize_param {{ {block} }}'


def resize_by_opencvs_rules(x: Array, height: int, width: int, *, nearest: bool) -> Array:
    """cv::resize with INTER_NEAREST or INTER_LINEAR."""

    def places(size: int, out: int) -> list[tuple[int, int, float]]:
        found = []
        for i in range(out):
            if nearest:
                first = min(math.floor(i * (1 / (out / size))), size - 1)
                found.append((first, first, 0.0))
                continue
            f = float(np.float32((i + 0.5) * (size / out) - 0.5))
            first = math.floor(f)
            f -= first
            if first < 0:
                first, f = 0, 0.0
            if first >= size - 1:
                first, f = size - 1, 0.0
            found.append((first, min(first + 1, size - 1), f))
        return found

    y = np.zeros((*x.shape[:2], height, width))
    for i, (r, below, of_row) in enumerate(places(x.shape[2], height)):
        for j, (c, right, of_column) in enumerate(places(x.shape[3], width)):
            upper = (1 - of_column) * x[:, :, r, c] + of_column * x[:, :, r, right]
            lower = (1 - of_column) * x[:, :, below, c] + of_column * x[:, :, below, right]
            y[:, :, i, j] = (1 - of_row) * upper + of_row * lower
    return y


class TestDeephiResize:
    def test_by_hand(self) -> None:
        x = [[[[1.0, 2.0, 3.0]]]]
        case = LayerCase(resize_text("new_height: 2 new_width: 4"), x)
        assert case.forward()[0].tolist() == [[[[1, 1, 2, 3], [1, 1, 2, 3]]]]
        assert case.backward(np.arange(8.0).reshape(1, 1, 2, 4))[0].tolist() == [[[[10, 8, 10]]]]
        case = LayerCase(resize_text("resize_type: BILINEAR scale_h: 1 scale_w: 2"), [[[[0.0, 4.0]]]])
        assert case.forward()[0].tolist() == [[[[0, 1, 3, 4]]]]

    @pytest.mark.parametrize("kind", ["NEAREST", "BILINEAR"])
    @pytest.mark.parametrize("size", [(7, 11), (2, 3), (4, 5), (13, 2), (8, 10)])
    def test_as_opencv(self, kind: str, size: tuple[int, int]) -> None:
        x = normal(2, 3, 4, 5)
        case = LayerCase(resize_text(f"resize_type: {kind} new_height: {size[0]} new_width: {size[1]}"), x)
        wanted = resize_by_opencvs_rules(x, *size, nearest=kind == "NEAREST")
        np.testing.assert_allclose(case.forward()[0], wanted, rtol=1e-6, atol=1e-6)
        case.check_gradient()

    def test_sizes(self) -> None:
        x = normal(1, 2, 5, 7)
        assert LayerCase(resize_text(""), x).forward()[0].shape == x.shape
        assert LayerCase(resize_text("scale_h: 1.5 scale_w: 0.5"), x).forward()[0].shape == (1, 2, 7, 3)
        both = "scale_h: 2 scale_w: 2 new_height: 3 new_width: 4"
        assert LayerCase(resize_text(both), x).forward()[0].shape == (1, 2, 3, 4)

    @given(st.integers(1, 4), st.integers(1, 4))
    def test_nearest_of_a_whole_scale_repeats_pixels(self, rows: int, columns: int) -> None:
        x = normal(1, 2, 3, 4)
        (y,) = LayerCase(resize_text(f"scale_h: {rows} scale_w: {columns}"), x).forward()
        np.testing.assert_array_equal(y, x.repeat(rows, axis=2).repeat(columns, axis=3))

    @pytest.mark.parametrize("kind", ["NEAREST", "BILINEAR"])
    def test_a_second_reshape(self, kind: str) -> None:
        check_a_second_reshape(
            resize_text(f"resize_type: {kind} scale_h: 2 scale_w: 3"),
            lambda case: case.layer.rows.before,  # type: ignore[attr-defined]
        )

    @pytest.mark.parametrize(
        ("block", "message"),
        [
            ("new_height: 2", "new_height and new_width go together, only one is given"),
            ("scale_w: 2", "scale_h and scale_w go together, only one is given"),
            ("scale_h: 0.1 scale_w: 1", "a map of 4x5 would become 0x5"),
            ("scale_h: inf scale_w: 1", "scale_h inf is too large, or not a number"),
        ],
    )
    def test_errors(self, block: str, message: str) -> None:
        with pytest.raises(LayerError, match=message):
            LayerCase(resize_text(block), np.zeros((1, 1, 4, 5)))


# quantize.cpp, one number at a time.


def round_away(x: float) -> int:
    return int(math.copysign(math.floor(abs(x) + 0.5), x))


def top_fix(x: float, bits: int, p: int) -> float:
    step = 2.0**-p
    t = x / step
    whole = math.ceil(t) if t < 0 and t - math.floor(t) == 0.5 else round_away(t)
    return min(max(whole * step, -(2.0 ** (bits - 1)) * step), 2.0 ** (bits - 1) * step - step)


def fix(x: float, bits: int, p: int) -> float:
    step = 2.0**-p
    return min(max(round_away(x / step) * step, -(2.0 ** (bits - 1)) * step), 2.0 ** (bits - 1) * step - step)


def overflow(x: list[float], bits: int) -> int:
    step = max(min(x) / (-(2 ** (bits - 1)) - 0.5), max(x) / (2 ** (bits - 1) - 0.5))
    return 32767 if step == 0 else math.floor(math.log2(1 / step))


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def least_errors(x: list[float], bits: int, *, through_sigmoid: bool) -> int:
    first, best = overflow(x, bits), (math.inf, 0)
    for p in range(first, first + (10 if through_sigmoid else 5)):
        pairs = [(one, fix(one, bits, p)) for one in x]
        errors = [(logistic(a) - logistic(b)) ** 2 if through_sigmoid else (a - b) ** 2 for a, b in pairs]
        best = min(best, (sum(errors), p), key=lambda pair: pair[0])
    return best[1]


def neuron_text(block: str = "") -> str:
    return f'type: "FixedNeuron" fixed_param {{ {block} }}'


HALVES = np.array([[0.25, 0.75, -0.25], [-0.75, 100, -100]])


class TestFixedNeuron:
    def case(self, block: str, x: Any, position: float, **more: Any) -> LayerCase:
        case = LayerCase(neuron_text(block), x, phase=TEST, **more)
        case.layer.blobs[0].data[...] = position
        return case

    def test_by_hand(self) -> None:
        """Numbers of eight bits, one of them after the point: halves go up, and 63.5 and -64 are the limits."""
        case = self.case("", HALVES, 1.9)
        assert case.forward()[0].tolist() == [[0.5, 1, 0], [-0.5, 63.5, -64]]
        assert case.backward(np.arange(6.0).reshape(2, 3))[0].tolist() == [[0, 1, 2], [3, 4, 5]]
        case = self.case("follow_data_layer: true", HALVES, 1)
        assert case.forward()[0].tolist() == [[0, 0.5, 0], [-0.5, 100, -100]]

    @pytest.mark.parametrize(("bits", "position"), [(8, 4), (5, -1), (16, 9)])
    def test_test_as_the_forks_loops(self, bits: int, position: int) -> None:
        x = np.round(8 * normal(3, 40) * 16) / 32
        (y,) = self.case(f"bit_width: {bits}", x, position).forward()
        np.testing.assert_array_equal(y, np.vectorize(lambda one: top_fix(one, bits, position))(x))

    @pytest.mark.parametrize("method", ["OVER_FLOW", "DIFF_S", "DIFF_A", "DIFF_S_SIGMOID"])
    @pytest.mark.parametrize("follow", ["true", "false"])
    def test_train_as_the_forks_loops(self, method: str, follow: str) -> None:
        """Three batches: the blob has the most frequent position, of equal ones the lowest, and only OVER_FLOW ignores it."""
        batches = [normal(2, 3, 5) * scale for scale in (1, 9, 9)]
        block = f"bit_width: 5 fixed_method: {method} follow_data_layer: {follow}"
        case = LayerCase(neuron_text(block), batches[0], phase=TRAIN)
        seen: Counter[int] = Counter()
        for x in batches:
            numbers = x.reshape(-1).tolist()
            now = (
                overflow(numbers, 5)
                if method == "OVER_FLOW"
                else least_errors(numbers, 5, through_sigmoid=method == "DIFF_S_SIGMOID")
            )
            seen[now] += 1
            most = max(sorted(seen), key=lambda place: seen[place])
            used = now if method == "OVER_FLOW" else most
            case.bottom[0].data[...] = x
            rule = fix if follow == "true" else top_fix
            wanted = np.array([rule(one, 5, used) for one in numbers]).reshape(x.shape)
            np.testing.assert_array_equal(case.forward()[0], wanted)
            assert case.layer.blobs[0].data.tolist() == [most]
        assert len(seen) == 2

    def test_a_resumed_layer_goes_on_with_the_frequencies(self) -> None:
        """Two batches of one position, then a resume and a batch of another one: the first is still the most frequent."""
        x = normal(2, 3)
        whole, resumed = (LayerCase(neuron_text("fixed_method: DIFF_S"), x, phase=TRAIN) for _ in range(2))
        whole.forward()
        whole.forward()
        resumed.layer.restore_training_state(json.loads(json.dumps(whole.layer.training_state())))
        for case in (whole, resumed):
            case.bottom[0].data[...] = 64 * x
        wanted = whole.forward()[0]
        np.testing.assert_array_equal(resumed.forward()[0], wanted)
        fresh = LayerCase(neuron_text("fixed_method: DIFF_S"), 64 * x, phase=TRAIN)
        assert np.abs(fresh.forward()[0] - wanted).max() > 1
        with pytest.raises(ValueError, match=r'"counts\[0\]" must be a whole number from 1 to'):
            resumed.layer.restore_training_state({"positions": [3], "counts": [0]})

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_zeros(self, dtype: type) -> None:
        case = LayerCase(neuron_text(), np.zeros((2, 3)), phase=TRAIN, dtype=dtype)
        assert not case.forward()[0].any()
        assert case.layer.blobs[0].data.tolist() == [32767]
        after = self.case("", np.ones((2, 3)), 32767, dtype=dtype)
        assert not after.forward()[0].any()

    def test_without_rounding(self) -> None:
        assert self.case("enable: false", HALVES, 1).forward()[0].tolist() == HALVES.tolist()

    def test_in_place(self) -> None:
        case = self.case("", HALVES, 1, in_place=True)
        assert case.forward()[0].tolist() == [[0.5, 1, 0], [-0.5, 63.5, -64]]
        assert case.backward(np.ones((2, 3)))[0].tolist() == np.ones((2, 3)).tolist()

    def test_a_second_reshape_and_no_gradient_unasked(self) -> None:
        case = self.case("", HALVES, 1)
        case.bottom[0].reshape(4, 5, 2)
        case.bottom[0].data[...] = 0.3
        case.bottom[0].diff[...] = 7
        assert (case.forward()[0] == np.full((4, 5, 2), 0.5)).all()
        assert (case.backward(propagate_down=[False])[0] == 7).all()

    @given(st.floats(-300, 300, width=32), st.integers(2, 16))
    def test_in_train_the_error_is_at_most_half_a_step(self, x: float, bits: int) -> None:
        case = LayerCase(neuron_text(f"bit_width: {bits}"), [x], phase=TRAIN)
        (y,) = case.forward()
        assert abs(y[0] - x) <= 2.0 ** -float(case.layer.blobs[0].data[0]) / 2

    def test_numbers_far_from_1(self) -> None:
        case = LayerCase(neuron_text(), np.array([1e-38, -5e-39], np.float32), phase=TRAIN, dtype=np.float32)
        (y,) = case.forward()
        np.testing.assert_allclose(y, [1e-38, -5e-39], rtol=0.01)
        assert self.case("", [1.5], -2000).forward()[0] == 0  # steps above the largest number

    def test_errors(self) -> None:
        for bits in (0, 33):
            with pytest.raises(LayerError, match=f"bit_width must be from 1 to 32, got {bits}"):
                LayerCase(neuron_text(f"bit_width: {bits}"), [1.0])
        for position in (np.nan, 1e30):
            with pytest.raises(LayerError, match=f"position, must be from -32767 to 32767, got {re.escape(f'{position:g}')}"):
                self.case("", [1.0], position).forward()
        with pytest.raises(LayerError, match="x holds NaN or an infinite number"):
            LayerCase(neuron_text(), [np.nan], phase=TRAIN).forward()
