"""BatchNorm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import Net
from minicaffe.errors import LayerError, WeightsError
from minicaffe.layers.norm.batch_norm_layouts import BVLC, NVIDIA_15, NVIDIA_17, stored_layout
from minicaffe.mode import TEST, TRAIN
from minicaffe.parameters import weight_name
from minicaffe.prototxt import parse_net

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]

TEXT = 'type: "BatchNorm" batch_norm_param { eps: 0.0001 moving_average_fraction: 0.5 }'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(1.5, 2.0, shape)


def test_by_hand() -> None:
    """Two channels of two numbers: (1, 3) has mean 2, variance 1; (10, 10) variance 0."""
    case = LayerCase(TEXT, [[1.0, 10.0], [3.0, 10.0]], phase=TRAIN)
    (y,) = case.forward()
    np.testing.assert_allclose(y, [[-1, 0], [1, 0]], atol=1e-4)
    mean, var, factor = (blob.data for blob in case.layer.blobs)
    np.testing.assert_allclose(mean, [2, 10])
    np.testing.assert_allclose(var, [2, 0])
    assert factor == [1]
    case.forward()
    mean, var, factor = (blob.data for blob in case.layer.blobs)
    np.testing.assert_allclose(mean, [3, 15])
    np.testing.assert_allclose(var, [3, 0])
    assert factor == [1.5]


def test_global_statistics_by_hand() -> None:
    case = LayerCase('type: "BatchNorm" batch_norm_param { eps: 0 }', [[5.0, 1.0]])
    for blob, value in zip(case.layer.blobs, ([2, 4], [8, 32], [2]), strict=True):
        blob.data[...] = value
    np.testing.assert_allclose(case.forward()[0], [[2, -0.25]])
    np.testing.assert_allclose(case.backward(np.array([[1.0, 1.0]]))[0], [[0.5, 0.25]])


@pytest.mark.parametrize("case", cases("BatchNorm"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize("shape", [(4, 3, 2, 5), (6, 3), (7,), (1, 2, 9)])
def test_gradient(phase: int, shape: tuple[int, ...]) -> None:
    case = LayerCase(TEXT, normal(*shape), phase=TRAIN if phase == TRAIN else TEST)
    case.layer.blobs[1].data[...] = 3
    case.layer.blobs[2].data[...] = 2
    case.check_gradient()


def test_the_chain_in_place_keeps_what_backward_needs() -> None:
    """BatchNorm, Scale and ReLU on one blob give the gradients that they give apart."""
    texts = [
        TEXT,
        'type: "Scale" scale_param { bias_term: true filler { value: 2 } bias_filler { value: 0.5 } }',
        'type: "ReLU"',
    ]
    x, dy = normal(4, 3, 2, 5), normal(4, 3, 5, 2).reshape(4, 3, 2, 5)
    apart, data = [], x
    for text in texts:
        apart.append(LayerCase(text, data, phase=TRAIN))
        data = apart[-1].forward()[0]
    expected = dy
    for case in reversed(apart):
        expected = case.backward(expected)[0]
    chain = [LayerCase(text, x, phase=TRAIN, in_place=True) for text in texts]
    blob = chain[0].bottom
    for case in chain:
        case.layer.forward_pass(blob, blob)
    np.testing.assert_allclose(blob[0].data, data)
    blob[0].diff[...] = dy
    for case in reversed(chain):
        case.layer.backward_pass(blob, [True], blob)
    np.testing.assert_allclose(blob[0].diff, expected, rtol=1e-10, atol=1e-10)
    for mine, theirs in zip(chain[1].layer.blobs, apart[1].layer.blobs, strict=True):
        np.testing.assert_allclose(mine.diff, theirs.diff, rtol=1e-10)


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(1, 4), st.integers(1, 5), st.sampled_from([np.float32, np.float64]))
def test_batch_statistics_of_the_top(n: int, channels: int, positions: int, dtype: type) -> None:
    x = normal(n, channels, positions)
    case = LayerCase('type: "BatchNorm"', x, phase=TRAIN, dtype=dtype)
    (y,) = case.forward()
    assert y.dtype == dtype
    assert np.abs(y.mean(axis=(0, 2))).max() < 1e-4
    assert np.abs(y.std(axis=(0, 2)) - 1).max() < 1e-2
    np.testing.assert_array_equal(case.bottom[0].data, x.astype(dtype))


def test_statistics_are_never_learnt() -> None:
    case = LayerCase(TEXT + " param { lr_mult: 2 decay_mult: 3 }", normal(4, 3), phase=TRAIN)
    assert [(p.lr_mult, p.decay_mult) for p in case.layer.param.param] == [(0, 0)] * 3
    assert case.layer.param_propagate_down == [False] * 3


def test_second_reshape_and_no_rows() -> None:
    for phase in (TRAIN, TEST):
        case = LayerCase(TEXT, normal(4, 3, 5), phase=phase)
        case.bottom[0].reshape(0, 3, 7)
        assert case.forward()[0].shape == (0, 3, 7)
        assert case.backward()[0].shape == (0, 3, 7)
        assert (case.layer.blobs[2].data == 0).all()


def test_other_channels_is_an_error() -> None:
    case = LayerCase(TEXT, normal(4, 3))
    case.bottom[0].reshape(4, 5)
    with pytest.raises(LayerError, match=r"shape \(4, 5\) has 5 channels, the statistics are for 3"):
        case.forward()


@pytest.mark.parametrize("field", ["eps", "moving_average_fraction"])
def test_negative_numbers(field: str) -> None:
    with pytest.raises(LayerError, match=f"{field} must be >= 0, got -1"):
        LayerCase(f'type: "BatchNorm" batch_norm_param {{ {field}: -1 }}', [1.0])


# NVIDIA's, of 0.15 and 0.17.

SCALED = "scale_filler { type: 'gaussian' std: 1 } bias_filler { type: 'gaussian' std: 1 }"
FIVE = "param {} " * 5
SHAPES_15, SHAPES_17 = [(3,), (3,), (3,), (3,), (1,)], [(3,), (3,), (1,), (3,), (3,)]


def nvidia(inside: str, more: str = "") -> str:
    return f'type: "BatchNorm" {more} batch_norm_param {{ {inside} }}'


def test_nvidias_by_hand() -> None:
    """Statistics are copied twice, then mixed; 0.17 stores the variance with eps."""
    case = LayerCase(nvidia("scale_bias: true eps: 0.5 moving_average_fraction: 0.75"), [[1.0, 10.0], [3.0, 10.0]], phase=TRAIN)
    assert case.layer.layout == NVIDIA_17
    mean, variance, correction, scale, bias = (blob.data for blob in case.layer.blobs)
    assert [correction.tolist(), scale.tolist(), bias.tolist()] == [[1], [1, 1], [0, 0]]
    scale[...], bias[...] = 2, 5
    (y,) = case.forward()
    np.testing.assert_allclose(y, [[5 - 2 / 1.5**0.5, 5], [5 + 2 / 1.5**0.5, 5]])
    case.forward()
    assert [mean.tolist(), variance.tolist()] == [[2, 10], [1.5, 0.5]]
    mean[...], variance[...] = 4, 8
    case.forward()
    np.testing.assert_allclose(mean, [3.5, 0.75 * 4 + 0.25 * 10])
    np.testing.assert_allclose(variance, [0.75 * 8 + 0.25 * 1.5, 0.75 * 8 + 0.25 * 0.5])


@pytest.mark.parametrize("inside", ["scale_bias: true eps: 0", "scale_bias: true eps: 0.5 use_global_stats: false"])
def test_nvidias_stored_statistics_by_hand(inside: str) -> None:
    """In TEST 0.17 takes them whatever use_global_stats says; its eps is at least 1e-5."""
    case = LayerCase(nvidia(inside), [[5.0, 1.0]])
    for blob, value in zip(case.layer.blobs, ([2, 4], [1, 4], [1], [2, 3], [7, 8]), strict=True):
        blob.data[...] = value
    eps = 1e-5 if "eps: 0 " in inside + " " else 0.5
    np.testing.assert_allclose(case.forward()[0], [[7 + 2 * 3 / (1 + eps) ** 0.5, 8 - 3 * 3 / (4 + eps) ** 0.5]])


@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize(
    ("inside", "more"),
    [(SCALED, ""), ("scale_bias: false", ""), ("scale_filler { value: 2 }", ""), ("", FIVE), ("use_global_stats: false", FIVE)],
)
@pytest.mark.parametrize("shape", [(3, 3, 2, 2), (6, 3)])
def test_nvidias_gradient(phase: int, inside: str, more: str, shape: tuple[int, ...]) -> None:
    case = LayerCase(nvidia(inside, more), normal(*shape), phase=TRAIN if phase == TRAIN else TEST)
    case.layer.blobs[case.layer.layout.index("variance")].data[...] = 3
    assert case.check_gradient().elements >= normal(*shape).size + ("scale" in case.layer.layout) * 6


@pytest.mark.parametrize(
    ("inside", "more", "layout"),
    [
        ("", "", BVLC),
        ("use_global_stats: true", "param {} " * 3, BVLC),
        ("scale_bias: false", "", NVIDIA_17[:3]),
        ("scale_bias: true", FIVE, NVIDIA_17),
        ("bias_filler { value: 2 }", "", NVIDIA_17),
        ("", FIVE, NVIDIA_15),
    ],
)
def test_the_fields_name_the_layout(inside: str, more: str, layout: tuple[str, ...]) -> None:
    case = LayerCase(nvidia(inside, more), normal(2, 3))
    assert case.layer.layout == layout
    assert [weight_name(case.layer, i) for i in range(len(layout))] == list(layout)
    assert case.layer.param_propagate_down == [name in ("scale", "bias") for name in layout]


@pytest.mark.parametrize(
    ("inside", "shapes", "layout"),
    [
        ("", SHAPES_15, NVIDIA_15),
        ("", SHAPES_17, NVIDIA_17),
        ("scale_filler { value: 2 }", SHAPES_15, NVIDIA_15),
        ("scale_filler { value: 2 }", SHAPES_17, NVIDIA_17),
        ("", [(1,)] * 5, NVIDIA_15),
        ("scale_bias: true", [(1,)] * 5, NVIDIA_17),
        ("", [(3,), (3,), (1,)], BVLC),
    ],
)
def test_then_the_stored_blobs_do(inside: str, shapes: list[tuple[int, ...]], layout: tuple[str, ...]) -> None:
    assert stored_layout(LayerCase(nvidia(inside), normal(2, 3)).layer.param, shapes)[0] == layout


NET = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 } } }
layer { name: "bn" type: "BatchNorm" bottom: "x" top: "y" %s }
layer { name: "loss" type: "Reduction" bottom: "y" top: "l" loss_weight: 1 }
"""


@pytest.mark.parametrize("more", ["scale_filler { value: 3 }", ""])
def test_stored_blobs_of_015(tmp_path: Path, more: str) -> None:
    """A net of BVLC's or 0.17's layout takes that of the file, and learns scale and bias; nets that share with it follow."""
    stored = Net(parse_net(NET % FIVE), phase=TRAIN)
    for i, blob in enumerate(stored.params["bn"]):
        blob.data[...] = 1 + np.arange(blob.count) + 10 * i
    stored.save(tmp_path / "w.caffemodel")
    net = Net(parse_net(NET % f"batch_norm_param {{ {more} }}"), phase=TRAIN)
    net.copy_from(tmp_path / "w.caffemodel")
    assert net.layer_dict["bn"].layout == NVIDIA_15
    assert net.params_lr == [1, 1, 0, 0, 0]
    x = normal(4, 3).astype(np.float32)
    for made in (stored, net):
        made.forward(x=x)
        made.backward()
    np.testing.assert_array_equal(net.blobs["y"].data, stored.blobs["y"].data)
    assert net.params["bn"][0].diff.any()
    test = Net(parse_net(NET % f"batch_norm_param {{ {more} }}"), phase=TEST)
    test.share_with(net)
    assert np.shares_memory(test.params["bn"][2].data, net.params["bn"][2].data)
    net.save(tmp_path / "again.caffemodel")
    assert Net(net.param, phase=TEST, weights=tmp_path / "again.caffemodel").layer_dict["bn"].layout == NVIDIA_15


@pytest.mark.parametrize(
    ("inside", "stored", "own", "other"),
    [
        ("scale_bias: true", FIVE, "NVIDIA's of 0.17, with the blobs mean, .*, bias", "NVIDIA's of 0.15: scale, bias, mean"),
        ("scale_bias: true", "", "NVIDIA's of 0.17, with the blobs mean, .*, bias", "BVLC's: mean_sum, variance_sum, factor"),
        ("scale_bias: false", FIVE, "NVIDIA's of 0.17 without scale_bias, with .* correction", "NVIDIA's of 0.15: scale, bias"),
        (
            "scale_bias: false",
            "batch_norm_param { scale_bias: true }",
            "NVIDIA's of 0.17 without scale_bias, with",
            "NVIDIA's of 0.17: mean, variance, correction, scale, bias",
        ),
    ],
)
def test_stored_blobs_of_the_other_layout(inside: str, stored: str, own: str, other: str, tmp_path: Path) -> None:
    Net(parse_net(NET % stored), phase=TRAIN).save(tmp_path / "w.caffemodel")
    net = Net(parse_net(NET % f"batch_norm_param {{ {inside} }}"), phase=TEST)
    with pytest.raises(WeightsError, match=f'BatchNorm layer "bn": it is {own}.*, but the weights are {other}'):
        net.copy_from(tmp_path / "w.caffemodel")


def test_training_state_counts_the_forwards_that_copy() -> None:
    case = LayerCase(nvidia("scale_bias: true moving_average_fraction: 0.75"), normal(4, 3), phase=TRAIN)
    for _ in range(3):
        case.forward()
    assert case.layer.training_state() == {"forwards": 2}
    other = LayerCase(nvidia("scale_bias: true moving_average_fraction: 0.75"), normal(4, 3), phase=TRAIN)
    other.layer.restore_training_state({"forwards": 2})
    other.layer.blobs[0].data[...] = 100
    other.forward()
    assert (other.layer.blobs[0].data > 70).all()
    assert LayerCase(TEXT, normal(4, 3), phase=TRAIN).layer.training_state() == {}


def test_where_eps_is_added_must_be_the_same() -> None:
    field = 'type: "BatchNorm" batch_norm_param { add_eps_before_sqrt: %s }'
    x = np.random.default_rng(3).normal(size=(2, 3, 4, 5))
    np.testing.assert_array_equal(LayerCase(field % "true", x).forward()[0], LayerCase('type: "BatchNorm"', x).forward()[0])
    with pytest.raises(LayerError, match=r"add_eps_before_sqrt: false, for .* sqrt\(var\) \+ eps \(Synopsys.* is not built in"):
        LayerCase(field % "false", x)


# Intel's: BVLC's sums and factor, then scale, and bias unless bias_term is false.


@pytest.mark.parametrize("blobs", [4, 5])
def test_intels_by_hand(blobs: int) -> None:
    """Mean 3 and variance 4 of sums with the factor 2; eps 0: (5 - 3) / 2 times 7, plus 1 where there is a bias."""
    case = LayerCase(nvidia("eps: 0", "param {} " * blobs), [[5.0]], fork="intel")
    for blob, value in zip(case.layer.blobs, (6, 8, 2, 7, 1), strict=False):
        blob.data[...] = value
    assert case.forward()[0].tolist() == [[7.0 + (blobs == 5)]]


@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize("blobs", [4, 5])
def test_intels_gradient(blobs: int, phase: int) -> None:
    case = LayerCase(nvidia("", "param {} " * blobs), normal(4, 3, 2), phase=TRAIN if phase == TRAIN else TEST, fork="intel")
    case.layer.blobs[1].data[...], case.layer.blobs[2].data[...] = 3, 2
    assert case.check_gradient().elements == normal(4, 3, 2).size + 3 * (blobs - 3)


def test_intels_training_adds_to_the_sums() -> None:
    case = LayerCase(nvidia("moving_average_fraction: 0.5", "param {} " * 4), [[1.0], [3.0]], phase=TRAIN)
    for _ in range(2):
        case.forward()
    assert [blob.data.tolist() for blob in case.layer.blobs] == [[3.0], [3.0], [1.5], [1.0]]
    assert case.layer.training_state() == {}


@pytest.mark.parametrize("layout", [FIVE, ""])
def test_statistics_with_a_factor_in_nvidias_place_are_divided_by_it(layout: str) -> None:
    """NVIDIA's correction is 1; files of Intel's Caffe have blobs of the same shapes."""
    case = LayerCase(nvidia("eps: 0.5" + " scale_bias: true" * (not layout), layout), normal(4, 3))
    mean, variance, correction = (case.layer.layout.index(name) for name in ("mean", "variance", "correction"))
    case.layer.blobs[mean].data[...], case.layer.blobs[variance].data[...] = normal(3), [1, 2, 3]
    expected = case.forward()[0]
    for i in (mean, variance, correction):
        case.layer.blobs[i].data[...] *= 8
    np.testing.assert_allclose(case.forward()[0], expected)


def test_happynears_statistics_move_faster() -> None:
    """After two batches of means 1 and 4 their sum is 0.99 + 4, of 1.99 batches; of BVLC's 0.999 + 4, of 1.999."""
    for inside, fork, fraction in (
        ("", "happynear", 0.99),
        ("moving_average_fraction: 0.5", "happynear", 0.5),
        ("", "", 0.999),
    ):
        case = LayerCase(f'type: "BatchNorm" batch_norm_param {{ {inside} }}', [[0.0], [2.0]], phase=TRAIN, fork=fork)
        case.forward()
        case.bottom[0].data[...] = [[3.0], [5.0]]
        case.forward()
        np.testing.assert_allclose([case.layer.blobs[0].data[0], case.layer.blobs[2].data[0]], [fraction + 4, fraction + 1])
