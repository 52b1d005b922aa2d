"""BN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import Net
from minicaffe.cli.groups import StateOptions
from minicaffe.errors import LayerError, WeightsError
from minicaffe.formats.prototxt import parse_net
from minicaffe.mode import TEST, TRAIN
from minicaffe.parameters import weight_name
from minicaffe.training.solvers import get_solver

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]

PSPNET = 'type: "BN" bn_param { momentum: 0.75 eps: 0.001 }'
FROZEN = 'type: "BN" bn_param { frozen: true eps: 0.001 }'
LEARN = 'type: "BN" bn_param { bn_mode: LEARN }'
INFERENCE = 'type: "BN" bn_param { bn_mode: INFERENCE }'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(1.5, 2.0, shape)


def made(text: str, x: object, phase: int = TEST, **options: object) -> LayerCase:
    """With weights and statistics that are no two alike, all positive."""
    case = LayerCase(text, x, phase=phase, **options)  # type: ignore[arg-type]
    random = np.random.default_rng(3)
    for blob in case.layer.blobs:
        blob.data[...] = random.uniform(0.5, 2, blob.shape)
    return case


def put(case: LayerCase, *values: list[float]) -> None:
    for blob, numbers in zip(case.layer.blobs, values, strict=True):
        blob.data[...] = np.reshape(numbers, blob.shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pspnets_by_hand(dtype: type) -> None:
    """Two channels of two numbers: (1, 3) has mean 2, variance 1; (10, 10) variance 0."""
    case = LayerCase('type: "BN" bn_param { momentum: 0.75 eps: 0 }', [[1.0, 10.0], [3.0, 12.0]], phase=TRAIN, dtype=dtype)
    put(case, [2, 5], [0.5, -1], [4, 8], [16, 4])
    np.testing.assert_array_equal(case.forward()[0], [[-1.5, -6], [2.5, 4]])
    assert [blob.data.ravel().tolist() for blob in case.layer.blobs] == [[2, 5], [0.5, -1], [3.5, 8.75], [12.25, 3.25]]
    case.backward(np.array([[1.0, 2.0], [3.0, 5.0]]))
    assert case.layer.blobs[0].diff.ravel().tolist() == [2, 3]
    assert case.layer.blobs[1].diff.ravel().tolist() == [4, 7]
    tested = LayerCase('type: "BN" bn_param { eps: 0 }', [[1.0, 10.0]], phase=TEST, dtype=dtype)
    put(tested, [2, 5], [0.5, -1], [5, 8], [16, 4])
    assert tested.forward()[0].tolist() == [[2 * -1 + 0.5, 5 * 1 - 1]]
    assert tested.backward(np.array([[4.0, 4.0]]))[0].tolist() == [[2, 10]]
    assert tested.layer.blobs[0].diff.ravel().tolist() == [-4, 4]


def test_segnets_by_hand() -> None:
    """LEARN takes the batch's statistics in TEST too, and shows them; INFERENCE takes none."""
    case = LayerCase('type: "BN"', [[1.0, 10.0], [3.0, 14.0]], phase=TEST, tops=3)
    put(case, [2, 5], [0.5, -1])
    y, mean, variance = case.forward()
    np.testing.assert_allclose(y, [[-1.5, -6], [2.5, 4]], atol=1e-8)
    np.testing.assert_allclose(mean.ravel(), [2, 12])
    np.testing.assert_allclose(variance.ravel(), [1, 4])
    case = LayerCase(INFERENCE, [[1.0, 10.0]], phase=TRAIN)
    put(case, [2, 5], [0.5, -1])
    assert case.forward()[0].tolist() == [[2.5, 49]]


@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize("text", [PSPNET, FROZEN, LEARN, INFERENCE])
@pytest.mark.parametrize("shape", [(4, 3, 2, 5), (6, 3), (1, 2, 9)])
def test_gradient(text: str, phase: int, shape: tuple[int, ...]) -> None:
    made(text, normal(*shape), phase).check_gradient()


@pytest.mark.parametrize("text", [PSPNET, FROZEN, LEARN, INFERENCE])
@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_in_place_gives_what_two_blobs_give(text: str, phase: int) -> None:
    x, dy = normal(4, 3, 2, 5), normal(4, 3, 10).reshape(4, 3, 2, 5)
    apart, within = made(text, x, phase), made(text, x, phase, in_place=True)
    np.testing.assert_array_equal(within.forward()[0], apart.forward()[0])
    np.testing.assert_array_equal(within.backward(dy)[0], apart.backward(dy)[0])
    for mine, other in zip(within.layer.blobs, apart.layer.blobs, strict=True):
        np.testing.assert_array_equal(mine.diff, other.diff)


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(1, 4), st.integers(1, 5), st.sampled_from([PSPNET, LEARN]))
def test_the_batch_gets_the_learnt_mean_and_deviation(n: int, channels: int, positions: int, text: str) -> None:
    x = normal(n, channels, positions)
    case = made(text, x, TRAIN)
    (y,) = case.forward()
    slope, bias = (blob.data.ravel() for blob in case.layer.blobs[:2])
    spread = np.sqrt(x.var(axis=(0, 2)) / (x.var(axis=(0, 2)) + case.layer.eps))  # type: ignore[attr-defined]
    np.testing.assert_allclose(y.mean(axis=(0, 2)), bias, rtol=1e-9)
    np.testing.assert_allclose(y.std(axis=(0, 2)), slope * spread, rtol=1e-6)
    np.testing.assert_array_equal(case.bottom[0].data, x)


def test_what_is_not_learnt_has_no_gradient_and_no_rate() -> None:
    text = PSPNET + " param { lr_mult: 2 decay_mult: 3 }"
    for inside, rates in ((text, [2, 1, 0, 0]), (text.replace("eps", "frozen: true eps"), [0] * 4)):
        case = made(inside, normal(4, 3), TRAIN)
        assert [spec.lr_mult for spec in case.layer.param.param] == rates
        assert case.layer.param_propagate_down == [rate > 0 for rate in rates]
        case.layer.param_propagate_down = [True] * 4  # as force_backward does
        case.forward()
        case.backward(normal(4, 3))
        assert [bool(blob.diff.any()) for blob in case.layer.blobs] == [rate > 0 for rate in rates]
    assert not made(LEARN, normal(4, 3), TRAIN).layer.param.param


def test_fillers() -> None:
    case = LayerCase('type: "BN" bn_param { slope_filler { value: 3 } bias_filler { value: 2 } frozen: true }', normal(4, 3))
    assert [blob.data.ravel().tolist() for blob in case.layer.blobs] == [[3] * 3, [2] * 3, [0] * 3, [1] * 3]
    assert [blob.data.ravel().tolist() for blob in LayerCase(LEARN, normal(4, 3)).layer.blobs] == [[1] * 3, [0] * 3]


@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize("text", [PSPNET, FROZEN, LEARN, INFERENCE])
def test_a_second_reshape(text: str, phase: int) -> None:
    case = made(text, normal(4, 3, 5), phase)
    case.forward()
    case.bottom[0].reshape(2, 3, 7, 2)
    case.bottom[0].data[...] = normal(2, 3, 7, 2)
    assert case.forward()[0].shape == (2, 3, 7, 2)
    case.check_gradient()
    case.bottom[0].reshape(0, 3, 7)
    before = [blob.data.copy() for blob in case.layer.blobs]
    assert case.forward()[0].shape == case.backward()[0].shape == (0, 3, 7)
    for blob, data in zip(case.layer.blobs, before, strict=True):
        np.testing.assert_array_equal(blob.data, data)


OPEN = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 4 dim: 5 } } }
layer { name: "bn" type: "BN" bottom: "x" top: "y" }
"""
LOSS = 'layer { name: "l" type: "Reduction" bottom: "y" top: "l" loss_weight: 1 }'


@pytest.mark.parametrize(("fields", "names"), [("momentum: 0.5", ["slope", "mean"]), ("bn_mode: LEARN", ["scale"])])
def test_the_stored_weights_tell_which_of_the_two_it_is(fields: str, names: list[str], tmp_path: Path) -> None:
    told = Net(parse_net(OPEN.replace('top: "y"', f'top: "y" bn_param {{ {fields} }}')), TEST)
    for i, blob in enumerate(told.params["bn"]):
        blob.data[...] = i + 1
    told.save(tmp_path / "bn.caffemodel")
    found = Net(parse_net(OPEN), TEST, weights=tmp_path / "bn.caffemodel")
    layer = found.layer_dict["bn"]
    assert [weight_name(layer, i) for i in range(0, len(layer.blobs), 2)] == names
    assert [blob.data.flat[0] for blob in layer.blobs] == [i + 1 for i in range(len(layer.blobs))]
    (tmp_path / "bn.prototxt").write_text(OPEN)
    loaded = StateOptions(level=0, stages=(), fork=None, allow_module=(), skip_unknown=False).load(
        str(tmp_path / "bn.prototxt"), [str(tmp_path / "bn.caffemodel")]
    )
    assert loaded.layer_dict["bn"].weight_names == layer.weight_names
    later = Net(parse_net(OPEN.replace('top: "y"', 'top: "y" param { lr_mult: 7 } param { lr_mult: 8 }')), TEST)
    assert "bn" not in later.params
    with pytest.raises(
        LayerError,
        match=r"may be PSPNet.s \(4 blobs.*pspnet\) or SegNet.s \(2 blobs: scale, shift; --fork segnet\), .* load its",
    ):
        later.forward()
    later.copy_from(tmp_path / "bn.caffemodel")
    assert later.params_lr == [7, 8, 0, 0][: len(later.params["bn"])]
    later.forward()
    again = Net(later.param, TEST)
    assert [blob.shape for blob in again.params["bn"]] == [blob.shape for blob in later.params["bn"]]


@pytest.mark.parametrize(
    ("text", "shape", "tops", "message"),
    [
        ('type: "BN" bn_param { eps: 1 bn_mode: LEARN }', (2, 3), 1, "fields of PSPNet's BN and of SegNet's"),
        (LEARN, (3,), 1, r"at least two axes \(N, C, ...\), got shape \(3,\)"),
        (PSPNET, (2, 3), 3, "takes 1 top, or of SegNet's kind with bn_mode: LEARN 3 tops, got 3"),
        (INFERENCE, (2, 3), 3, "LEARN 3 tops, got 3"),
        (LEARN, (2, 3), 2, "LEARN 3 tops, got 2"),
        ('type: "BN" bn_param { eps: -1 }', (2, 3), 1, "eps must be >= 0, got -1"),
        ('type: "BN" bn_param { momentum: -1 }', (2, 3), 1, "momentum must be >= 0, got -1"),
    ],
)
def test_errors(text: str, shape: tuple[int, ...], tops: int, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, np.zeros(shape), tops=tops)


def test_other_channels_is_an_error() -> None:
    case = LayerCase(LEARN, normal(4, 3))
    case.bottom[0].reshape(4, 5)
    with pytest.raises(LayerError, match=r"must have 3 channels on axis 1, its shape is \(4, 5\)"):
        case.forward()


def test_weights_of_the_other_kind_are_refused(tmp_path: Path) -> None:
    Net(parse_net(OPEN.replace('top: "y"', 'top: "y" bn_param { bn_mode: LEARN }')), TEST).save(tmp_path / "bn.caffemodel")
    with pytest.raises(WeightsError, match=r"PSPNet.s, with the blobs slope, .* store as many as SegNet's has: scale, shift"):
        Net(parse_net(OPEN.replace('top: "y"', 'top: "y" bn_param { eps: 1 }')), TEST, weights=tmp_path / "bn.caffemodel")


@pytest.mark.parametrize(("blobs", "message"), [(3, "PSPNet's has 4 blobs and SegNet's 2, but the weights store 3")])
def test_stored_blobs_of_neither_are_an_error(blobs: int, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        Net(parse_net(OPEN), TEST).take_layouts([("bn", [(1, 3, 1, 1)] * blobs)])


def test_param_blocks_tell_pspnets() -> None:
    net = Net(parse_net(OPEN.replace('top: "y"', 'top: "y"' + " param { lr_mult: 1 }" * 4)), TEST)
    assert len(net.params["bn"]) == 4


def test_a_solver_takes_the_kind_from_its_weights_and_its_snapshot(tmp_path: Path) -> None:
    """Its test net follows, which shares the weights."""
    data = (
        'layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 3 } data_filler { value: 2 } } }'
    )
    open_net = data + OPEN.splitlines()[2] + LOSS
    Net(parse_net(open_net.replace('top: "y"', 'top: "y" bn_param { frozen: false }')), TEST).save(tmp_path / "w.caffemodel")
    (tmp_path / "net.prototxt").write_text(open_net)
    text = (
        'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" momentum: 0.5 test_iter: 1 test_interval: 1'
        " test_initialization: false display: 0 "
    ) + f'snapshot_prefix: "{tmp_path / "s"}" '
    (tmp_path / "solver.prototxt").write_text(text)
    (tmp_path / "tuned.prototxt").write_text(text + 'weights: "w.caffemodel"')
    tuned = get_solver(tmp_path / "tuned.prototxt")
    tuned.step(2)
    assert [len(net.params["bn"]) for net in (tuned.net, *tuned.test_nets)] == [4, 4]
    assert len(tuned.history_blobs) == 4
    tuned.snapshot()
    resumed = get_solver(tmp_path / "solver.prototxt")
    resumed.restore(tmp_path / "s_iter_2.solverstate")
    for mine, other in zip(resumed.history_blobs, tuned.history_blobs, strict=True):
        np.testing.assert_array_equal(mine.data, other.data)


def test_a_net_that_forces_backward_does_so_after_its_weights_come(tmp_path: Path) -> None:
    Net(parse_net(OPEN.replace('top: "y"', 'top: "y" bn_param { frozen: true }')), TEST).save(tmp_path / "w.caffemodel")
    net = Net(parse_net(OPEN + LOSS), TEST)
    net.force_backward()
    net.copy_from(tmp_path / "w.caffemodel")
    net.forward(x=normal(2, 3, 4, 5))
    assert net.backward()["x"].any()
