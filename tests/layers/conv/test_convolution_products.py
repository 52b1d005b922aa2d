"""Which algorithm a convolution takes, and what Winograd keeps of the weights."""

from __future__ import annotations

import numpy as np
import pytest
from layer_case import LayerCase

from minicaffe import TEST, TRAIN, Phase, kernels
from minicaffe.blob import Blob
from minicaffe.errors import Error
from minicaffe.layers.conv import convolution_products as products
from minicaffe.layers.conv import winograd
from minicaffe.layers.conv.window import Window

SQUARE = Window((3, 3), (1, 1), (1, 1), (1, 1))
DILATED = Window((3, 3), (1, 1), (2, 2), (2, 2))
STRIDED = Window((5, 5), (2, 2), (1, 1), (1, 1))


def supports(
    shape: tuple[int, ...],
    filters: int,
    window: Window = SQUARE,
    *,
    group: int = 1,
    dtype: type = np.float32,
    kept: bool = True,
) -> bool:
    x, weight = np.zeros(shape, dtype), np.zeros((filters, shape[1] // group, *window.kernel), dtype)
    y = np.zeros((shape[0], filters, *window.output(shape[2:])), dtype)
    return products.supports(x, weight, window, group, y, kept)


@pytest.fixture(autouse=True)
def no_way_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(products.VARIABLE, raising=False)


def test_large_maps_of_many_channels_take_winograd() -> None:
    assert supports((1, 64, 60, 100), 64)
    assert supports((1, 512, 38, 63), 512, DILATED)
    assert supports((1, 128, 60, 100), 64, group=2)
    assert supports((16, 256, 14, 14), 256)
    assert supports((1, 96, 152, 252), 256, STRIDED)
    assert supports((1, 96, 27, 27), 256, Window((5, 5), (1, 1), (2, 2), (1, 1)), group=2)


@pytest.mark.parametrize(
    ("shape", "filters", "window", "group"),
    [
        ((1, 3, 60, 100), 64, SQUARE, 1),
        ((1, 64, 60, 100), 8, SQUARE, 1),
        ((1, 64, 60, 100), 64, SQUARE, 4),
        ((1, 64, 14, 15), 64, SQUARE, 1),
        ((50, 64, 7, 6), 64, SQUARE, 1),
        ((1, 64, 60, 100), 64, Window((3, 3), (2, 2), (1, 1), (1, 1)), 1),
        ((1, 64, 60, 100), 64, Window((3, 3), (1, 2), (1, 1), (1, 1)), 1),
        ((1, 64, 60, 100), 64, Window((3, 1), (1, 1), (1, 0), (1, 1)), 1),
        ((1, 64, 120, 200), 64, Window((5, 5), (2, 2), (2, 2), (2, 2)), 1),
        ((1, 64, 60, 100), 64, Window((7, 7), (1, 1), (3, 3), (1, 1)), 1),
        ((1, 64, 40, 60), 64, STRIDED, 1),
        ((1, 64, 60, 100, 4), 64, Window((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)), 1),
    ],
)
def test_others_are_direct(shape: tuple[int, ...], filters: int, window: Window, group: int) -> None:
    with kernels.using("numpy"):
        assert not supports(shape, filters, window, group=group)


def test_fully_connected_layers_made_convolutions_are_direct(loops_way: str) -> None:
    """Whose factors would take 600 MB."""
    window = Window((6, 6), (1, 1), (0, 0), (1, 1))
    assert not supports((1, 256, 37, 37), 4096, window)
    assert supports((1, 64, 37, 37), 64, window)


def test_compiled_loops_take_smaller_ones() -> None:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    with kernels.using("numba"):
        assert supports((1, 64, 32, 15), 64)
        assert supports((1, 64, 60, 100), 64, group=4)
        assert supports((1, 64, 13, 14), 64)
        assert not supports((1, 64, 9, 11), 64)
        assert not supports((1, 64, 32, 15), 64, kept=False)
        assert not supports((1, 512, 7, 7), 512)
        assert not supports((1, 64, 60, 100), 64, group=8)
        assert supports((1, 64, 32, 33), 64, STRIDED)
        assert not supports((1, 64, 17, 23), 64, STRIDED)


def test_float64_is_direct() -> None:
    assert not supports((1, 64, 60, 100), 64, dtype=np.float64)


def test_factors_that_are_not_kept_need_larger_maps() -> None:
    assert supports((1, 64, 30, 31), 64, kept=True)
    assert not supports((1, 64, 30, 31), 64, kept=False)


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(products.VARIABLE, "direct")
    assert not supports((1, 64, 60, 100), 64)
    monkeypatch.setenv(products.VARIABLE, "winograd")
    assert supports((1, 3, 7, 6), 5)
    assert not supports((1, 3, 7, 6), 5, dtype=np.float64)
    monkeypatch.setenv(products.VARIABLE, "fast")
    with pytest.raises(Error, match="MINICAFFE_CONV must be one of auto, direct, winograd, got 'fast'"):
        supports((1, 64, 60, 100), 64)


def layer(phase: Phase) -> LayerCase:
    text = 'type: "Convolution" convolution_param { num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "gaussian" } }'
    x = np.random.default_rng(0).standard_normal((1, 32, 33, 47), dtype=np.float32)
    return LayerCase(text, x, dtype=np.float32, phase=phase)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes the list grow by one whenever factors are made."""
    made: list[int] = []
    factors_of = winograd.factors_of

    def count(weight: np.ndarray, window: Window, group: int, out: np.ndarray | None = None) -> np.ndarray:
        made.append(group)
        return factors_of(weight, window, group, out)

    for module in (winograd, products):
        monkeypatch.setattr(module, "factors_of", count)
    return made


def test_factors_are_made_once_until_the_weights_change(monkeypatch: pytest.MonkeyPatch) -> None:
    made = counted(monkeypatch)
    case = layer(TEST)
    weight = case.layer.blobs[0].data  # a view that is held and written to, as pycaffe's users do
    (first,) = case.forward()
    first = first.copy()
    case.forward()
    assert made == [1]
    weight[3, 30, 2, 1] += 1
    (second,) = case.forward()
    assert made == [1, 1]
    changed = (first != second).any(axis=(0, 2, 3))
    assert changed[3] and changed.sum() == 1
    case.forward()
    assert made == [1, 1]
    weight[0, 0, 0, 0] = 0.0
    case.forward()
    weight[0, 0, 0, 0] = -0.0
    case.forward()
    assert made == [1] * 4


def test_factors_are_of_their_windows() -> None:
    """A kernel of 5 x 5 has four pieces with either stride, but not the same ones."""
    weight = np.random.default_rng(0).normal(size=(4, 3, 5, 5)).astype(np.float32)
    kept = products.WeightCache()
    for stride in (1, 2, 1):
        window = Window((5, 5), (stride, stride), (0, 0), (1, 1))
        assert (kept.factors(weight, window, 1) == winograd.factors_of(weight, window, 1)).all()


def test_weights_that_nobody_holds_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until somebody does; and other blobs in their place are other weights."""
    made = counted(monkeypatch)
    case = layer(TEST)

    def kept(held: bool) -> bool:
        told = case.layer.costs(case.bottom, case.top).cached
        return case.layer._kept.nbytes == told == products.factors_bytes((16, 32, 3, 3), SQUARE, 1, held)

    first = case.forward()[0].copy()
    case.forward()
    assert made == [1] and kept(held=False)
    weight = case.layer.blobs[0].read_data()[3, 30, 2, 1]
    case.layer.blobs[0].data[3, 30, 2, 1] = weight + 1
    second = case.forward()[0].copy()
    assert made == [1] * 2 and kept(held=False)
    assert np.flatnonzero((first != second).any(axis=(0, 2, 3))).tolist() == [3]
    held = case.layer.blobs[0].data
    case.forward()
    assert made == [1] * 3 and kept(held=True)
    held[3, 30, 2, 1] = weight
    np.testing.assert_array_equal(case.forward()[0], first)
    assert made == [1] * 4
    del held
    case.forward()
    assert made == [1] * 4
    for number in (2, 3):
        case.layer.blobs[0] = Blob((16, 32, 3, 3))
        case.layer.blobs[0].data[...] = number
        made.clear()
        inner = case.forward()[0][0, 5, 1:-1, 1:-1]
        assert made == [1]
        np.testing.assert_allclose(inner, number * sums_of_3x3(case.bottom[0].read_data()[0].sum(axis=0)), atol=1e-2)


def sums_of_3x3(image: np.ndarray) -> np.ndarray:
    rows, columns = image.shape
    return sum(image[i : rows - 2 + i, j : columns - 2 + j] for i in range(3) for j in range(3))


@pytest.mark.parametrize("shape", [(32, 29, 40), (2, 32, 29, 40), (1, 2, 32, 29, 40)])
def test_factors_are_counted_whatever_axis_has_the_channels(shape: tuple[int, ...], loops_way: str) -> None:
    text = f'type: "Convolution" convolution_param {{ num_output: 33 kernel_size: 3 pad: 1 axis: {len(shape) - 3} }}'
    case = LayerCase(text, np.ones(shape, np.float32), dtype=np.float32, phase=TEST)
    case.forward()
    assert case.layer.costs(case.bottom, case.top).cached == case.layer._kept.nbytes > 0


def test_panels_follow_the_weights(loops_way: str) -> None:
    """Whatever held view or copy they are written through; the memory they are made in stays the same."""
    text = 'type: "Convolution" convolution_param { num_output: 12 kernel_size: 1 group: 2 weight_filler { type: "gaussian" } }'
    x = np.random.default_rng(0).standard_normal((1, 18, 7, 9), dtype=np.float32)
    case = LayerCase(text, x, dtype=np.float32, phase=TEST)
    before = case.forward()[0].copy()
    told = case.layer.costs(case.bottom, case.top).cached
    assert told == (case.layer._kept.nbytes if loops_way == "numba" else 0) and (told > 0) == (loops_way == "numba")
    held = case.layer.blobs[0].data
    for channel, write in ((3, held), (7, case.layer.blobs[0].data)):
        write[channel, 5] += 1
        after = case.forward()[0].copy()
        part = x[0, (channel // 6) * 9 + 5]
        np.testing.assert_allclose((after - before)[0, channel, :, :], part, rtol=1e-4, atol=1e-4)
        assert (np.delete(after, channel, axis=1) == np.delete(before, channel, axis=1)).all()
        before = after
        assert case.layer.costs(case.bottom, case.top).cached == told


def test_large_panels_are_kept_for_few_windows_only(loops_way: str) -> None:
    text = 'type: "Convolution" convolution_param { num_output: 264 kernel_size: 1 weight_filler { type: "gaussian" } }'
    for channels, size, kept in ((512, (20, 40), True), (512, (20, 41), False), (8, (20, 41), True)):
        case = LayerCase(text, np.ones((1, channels, *size), np.float32), dtype=np.float32, phase=TEST)
        case.forward()
        told = case.layer.costs(case.bottom, case.top).cached
        assert (case.layer._kept.nbytes > 0) == (told > 0) == (kept and loops_way == "numba")


def test_panels_of_one_window(loops_way: str) -> None:
    """Of so many weights that to make them anew each time would take longer than BLAS."""
    text = 'type: "Convolution" convolution_param { num_output: 700 kernel_size: 1 weight_filler { type: "gaussian" } }'
    x = np.random.default_rng(1).standard_normal((1, 800, 1, 1), dtype=np.float32)
    case = LayerCase(text, x, dtype=np.float32, phase=TEST)
    expected = case.layer.blobs[0].data.reshape(700, 800) @ x.reshape(800)
    np.testing.assert_allclose(case.forward()[0].reshape(700), expected, rtol=1e-4, atol=1e-4)
    told = case.layer.costs(case.bottom, case.top).cached
    assert case.layer._kept.nbytes == told and (told > 0) == (loops_way == "numba")


def test_of_maps_that_change_their_size_the_last_ones_are_kept(loops_way: str) -> None:
    """Winograd's factors for 40 x 40, panels for 7 x 7; to ask how much is kept is no write to the weights."""
    text = 'type: "Convolution" convolution_param { num_output: 32 kernel_size: 3 pad: 1 weight_filler { type: "gaussian" } }'
    case = LayerCase(text, np.ones((1, 32, 40, 40), np.float32), dtype=np.float32, phase=TEST)
    for size in (40, 7, 40, 7):
        case.bottom[0].reshape(1, 32, size, size)
        case.forward()
        writes = case.layer.blobs[0].data_memory.writes
        told = case.layer.costs(case.bottom, case.top).cached
        assert case.layer.blobs[0].data_memory.writes == writes
        if loops_way == "numba":
            assert case.layer._kept.nbytes == told > 0


def test_nothing_is_kept_in_train(monkeypatch: pytest.MonkeyPatch) -> None:
    made = counted(monkeypatch)
    case = layer(TRAIN)
    case.forward()
    case.forward()
    assert made == [1, 1]


@pytest.mark.parametrize(("window", "pieces"), [(SQUARE, 1), (STRIDED, 4)])
def test_how_much_is_kept_is_known(window: Window, pieces: int, loops_way: str) -> None:
    weight = np.zeros((6, 4, *window.kernel), np.float32)
    kept = products.WeightCache()
    assert kept.nbytes == 0
    made = kept.factors(weight, window, 2)
    assert kept.nbytes == products.factors_bytes(weight.shape, window, 2, held=True)
    rows = made.shape[-1] if loops_way == "numba" else 3
    assert kept.nbytes == weight.nbytes + 2 * 36 * rows * pieces * 4 * 4
    blob, kept = Blob(weight.shape), products.WeightCache()
    kept.look_at(blob)
    kept.factors(blob.read_data(), window, 2)
    assert kept.nbytes == products.factors_bytes(weight.shape, window, 2, held=False) == 2 * 36 * rows * pieces * 4 * 4
