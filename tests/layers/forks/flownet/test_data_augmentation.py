"""DataAugmentation."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import TEST, TRAIN, Net, rng
from minicaffe.errors import LayerError, PrototxtWarning, WeightsError
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers.forks.flownet import colors
from minicaffe.layers.forks.flownet.coefficients import DEFAULTS, read, schedule, stored
from minicaffe.proto import caffe_pb2

TEXT = 'type: "DataAugmentation" augmentation_param {{ {} }}'
CROP = "crop_height: 3 crop_width: 4 "


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def row(**values: float) -> np.ndarray:
    return stored(values).reshape(1, -1, 1, 1)


def test_without_a_crop_and_a_mean_it_copies() -> None:
    x = normal(2, 3, 4, 5)
    y, coefficients = LayerCase(TEXT.format("mirror { mean: 1 } augment_during_test: true"), x, tops=2).forward()
    assert (y == x).all() and coefficients.shape == (2, 42, 1, 1) and not coefficients.any()


def test_a_crop_is_the_centre_by_hand() -> None:
    """In float32 the last column and row lie 0.95 of the way to the last pixel."""
    x = np.arange(6.0) + 10 * np.arange(5.0)[:, None]
    (y,) = LayerCase(TEXT.format(CROP), x[None, None]).forward()
    np.testing.assert_allclose(y[0, 0], x[1:4, 1:5])
    (y,) = LayerCase(TEXT.format("crop_height: 5 crop_width: 6"), x[None, None]).forward()
    expected = x.copy()
    expected[:, 5] -= 0.05
    expected[4] -= 0.5
    np.testing.assert_allclose(y[0, 0], expected, atol=1e-5)


def test_coefficients_from_another_layer() -> None:
    x = np.arange(8.0) + 10 * np.arange(7.0)[:, None]
    moved = row(dx=0.25, dy=-1 / 3)  # of the crop's width and height: 1 to the right, 1 up
    y, same = LayerCase(TEXT.format(CROP), x[None, None], moved, tops=2).forward()
    np.testing.assert_allclose(y[0, 0], x[1:4, 3:7], atol=1e-5)
    np.testing.assert_allclose(same, moved)
    (y,) = LayerCase(TEXT.format(CROP), x[None, None], row(mirror=1)).forward()
    np.testing.assert_allclose(y[0, 0], x[2:5, [6, 5, 4, 3]], atol=1e-5)
    (y,) = LayerCase(TEXT.format(CROP), x[None, None], row(zoom_x=0.5, zoom_y=2)).forward()
    at_x = np.clip((np.arange(4) - 2) / 0.5 + 4, 0, 8 - 1.05)
    at_y = (np.arange(3) - 1.5) / 2 + 3.5
    np.testing.assert_allclose(y[0, 0], at_x + 10 * at_y[:, None], atol=1e-4)
    (y,) = LayerCase(TEXT.format(CROP), x[None, None], row(angle=math.pi / 2)).forward()
    across, down = np.arange(4.0) - 2, np.arange(3.0)[:, None] - 1.5
    np.testing.assert_allclose(y[0, 0], (4 - down) + 10 * (3.5 + across), atol=1e-4)


def test_the_mean_of_the_first_batches() -> None:
    batches = [np.abs(normal(2, 3, 4, size)) + 1 for size in (5, 5, 5)]
    case = LayerCase(TEXT.format("recompute_mean: 2 mean_per_pixel: false"), batches[0], phase=TRAIN)
    seen = []
    for batch in batches:
        case.bottom[0].data[...] = batch
        seen.append(batch.mean(axis=(0, 2, 3), keepdims=True))
        mean = np.mean(seen[:2], axis=0)
        np.testing.assert_allclose(case.forward()[0], batch - mean)
    count, pixels, channels = (blob.data for blob in case.layer.blobs)
    assert count.tolist() == [[[[3]]]] and pixels.shape == (1, 3, 4, 5)
    np.testing.assert_allclose(channels, mean)
    assert [spec.lr_mult for spec in case.layer.param.param] == [0, 0, 0]


def test_a_mean_for_each_pixel_and_given_values() -> None:
    x = normal(2, 3, 4, 5)
    case = LayerCase(TEXT.format("recompute_mean: 1"), x, phase=TRAIN)
    np.testing.assert_allclose(case.forward()[0], x - x.mean(axis=0), atol=1e-12)
    (y,) = LayerCase(TEXT.format("mean: 1 mean: 2 mean: 3 mean_per_pixel: false"), x).forward()
    np.testing.assert_allclose(y, x - np.array([1, 2, 3]).reshape(3, 1, 1))
    assert (LayerCase(TEXT.format("mean: 1 mean: 2 mean: 3"), x).forward()[0] == x).all(), "as in the original"


def net(size: tuple[int, int], more: str) -> Net:
    return Net(
        parse_net(
            f'input: "x" input_shape {{ dim: 1 dim: 3 dim: {size[0]} dim: {size[1]} }}'
            f'layer {{ name: "a" bottom: "x" top: "y" {TEXT.format(more)} }}'
        ),
        TEST,
    )


@pytest.mark.parametrize("per_pixel", ["true", "false"])
def test_a_stored_mean_of_another_size(per_pixel: str, tmp_path: Path) -> None:
    made = net((4, 5), f"recompute_mean: 9 mean_per_pixel: {per_pixel}")
    count, pixels, channels = made.params["a"]
    count.data[...], pixels.data[...] = 9, normal(1, 3, 4, 5)
    channels.data[...] = pixels.data.mean(axis=(2, 3), keepdims=True)
    made.save(tmp_path / "a.caffemodel")
    other = net((6, 7), f"recompute_mean: 9 mean_per_pixel: {per_pixel}")
    other.copy_from(tmp_path / "a.caffemodel")
    x = normal(1, 3, 6, 7)
    np.testing.assert_allclose(other.forward(x=x)["y"], x - channels.data, atol=1e-5)
    assert other.params["a"][1].shape == (1, 3, 4, 5) and other.params["a"][0].data == 10
    same = net((4, 5), f"recompute_mean: 9 mean_per_pixel: {per_pixel}")
    same.copy_from(tmp_path / "a.caffemodel")
    x = normal(1, 3, 4, 5)
    expected = pixels if per_pixel == "true" else channels
    np.testing.assert_allclose(same.forward(x=x)["y"], x - expected.data, atol=1e-5)
    without = net((6, 7), "")
    without.copy_from(tmp_path / "a.caffemodel")  # stored blobs are kept, and not used
    x = normal(1, 3, 6, 7)
    np.testing.assert_allclose(without.forward(x=x)["y"], x, atol=1e-6)
    with pytest.raises(WeightsError, match="has 3 blobs, but"):
        bare = net((4, 5), "")
        bare.save(tmp_path / "bare.caffemodel")
        net((4, 5), "recompute_mean: 9").copy_from(tmp_path / "bare.caffemodel")


def test_a_test_net_without_a_stored_mean_warns() -> None:
    x = normal(1, 3, 4, 5)
    with pytest.warns(PrototxtWarning, match="no mean is stored: it is computed from the images that come"):
        (y,) = LayerCase(TEXT.format("recompute_mean: 2 mean_per_pixel: false"), x).forward()
    np.testing.assert_allclose(y, x - x.mean(axis=(2, 3), keepdims=True), atol=1e-12)


def pixel_by_definition(rgb: np.ndarray, vectors: np.ndarray, batch: np.ndarray, c: dict[str, float]) -> np.ndarray:
    """ChromaticEigenAugmentation of one pixel, step by step."""
    mean = batch.mean(axis=(0, 2, 3))
    extent = [max(abs(vectors[k] @ p) for p in batch.transpose(0, 2, 3, 1).reshape(-1, 3)) for k in range(3)]
    longest = math.hypot(*extent)
    e = [vectors[k] @ (rgb - mean) / extent[k] for k in range(3)]
    e = [math.copysign(abs(e[k]) ** c[f"pow_nomean{k}"], e[k]) for k in range(3)]
    e = [(e[k] + c[f"add_nomean{k}"]) * c[f"mult_nomean{k}"] + vectors[k] @ mean / extent[k] for k in range(3)]
    e[0] = (math.copysign(abs(e[0]) ** c["pow_withmean0"], e[0]) + c["add_withmean0"]) * c["mult_withmean0"]
    s = math.hypot(e[1], e[2])
    wanted = max(s ** c["pow_withmean1"] + c["add_withmean1"], 0) * c["mult_withmean1"] if s > 1e-2 else s
    cos, sin = math.cos(c["col_angle"]), math.sin(c["col_angle"])
    e = [e[0], cos * e[1] - sin * e[2], sin * e[1] + cos * e[2]]
    e = [e[k] * extent[k] for k in range(3)]
    length = math.hypot(*e) / longest
    if s > 1e-2:
        e = [e[0], e[1] / s * wanted, e[2] / s * wanted]
    length = max(length ** c["lmult_pow"] + c["lmult_add"], 0) * c["lmult_mult"] * longest
    now = math.hypot(*e)
    if now > 1e-2:
        e = [min(e[k] / now * length, extent[k]) for k in range(3)]
    return np.clip(np.array(e) @ vectors, 0, 255)


def test_colours_along_eigenvectors_by_definition() -> None:
    random = np.random.default_rng(3)
    x = random.random((2, 3, 4, 5))
    vectors = np.linalg.qr(random.normal(size=(3, 3)))[0]
    names = [name for name in colors.EIGEN_NAMES if not name.startswith("col")]
    c = {name: DEFAULTS[name] + 0.3 * random.random() for name in names} | {"col_angle": 0.4}
    crop = f"crop_height: 4 crop_width: 5 {' '.join(f'chromatic_eigvec: {v}' for v in vectors.ravel())}"
    rows = np.concatenate([row(**c), row()])
    (y,) = LayerCase(TEXT.format(crop), x, rows).forward()
    cropped = LayerCase(TEXT.format("crop_height: 4 crop_width: 5"), x).forward()[0]
    full = read(stored(c)) | {"col_angle": 0.4}
    for i, j in ((0, 0), (2, 3), (3, 1)):
        expected = pixel_by_definition(cropped[0, :, i, j], vectors, x, full)
        np.testing.assert_allclose(y[0, :, i, j], expected, atol=1e-5)
    with pytest.raises(LayerError, match="chromatic_eigvec must have 9 values, got 0"):
        LayerCase(TEXT.format("crop_height: 4 crop_width: 5"), x, rows).forward()


def test_colours_and_effects_by_hand() -> None:
    x = np.full((1, 3, 3, 4), 0.5)
    x[0, 1] = 0.25
    whole = "crop_height: 3 crop_width: 4"
    (y,) = LayerCase(TEXT.format(whole), x, row(gamma=2, brightness=0.1, contrast=0.5, color1=2)).forward()
    kept = (0.5 + 0.25 + 0.5) / (1 + 0.25 + 0.5 + 0.01)
    changed = np.array([1 * kept, 0.25 * kept, 0.5 * kept]) ** 2 + 0.1
    np.testing.assert_allclose(y[0, :, 1, 2], 0.5 + (changed - 0.5) * 0.5, atol=1e-6)
    (y,) = LayerCase(TEXT.format(whole), x, row(shadow_strength=0.3, shadow_distance=0.5)).forward()
    np.testing.assert_allclose(y[0, 1, :, :3], 0.25, atol=1e-6)  # columns 0 to 2 are at most 0 to the right of the middle
    np.testing.assert_allclose(y[0, :, 2, 3], [0.2, 0, 0.2], atol=1e-6)
    rng.set_random_seed(1)
    (y,) = LayerCase(TEXT.format(whole), x, row(noise=0.5)).forward()
    assert 0.2 < (y - x).std() < 0.8
    with pytest.raises(LayerError, match="colours and effects need images of 3 channels, got 2"):
        LayerCase(TEXT.format(whole), x[:, :2], row(noise=0.5)).forward()


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_coefficients_are_drawn_in_training(phase: int) -> None:
    rng.set_random_seed(7)
    drawn = (
        CROP + 'mirror { rand_type: "bernoulli" prob: 1 } translate { mean: 0.05 spread: 0.01 } rotate { spread: 0.01 }'
        ' zoom { exp: true mean: 0.1 } squeeze { exp: true mean: 0.2 } gamma { rand_type: "gaussian" mean: 1 spread: 0.1 }'
        ' color { rand_type: "uniform_bernoulli" exp: true prob: 0 } noise { mean: 0.01 } shadow_strength { mean: 0.1 }'
    )
    _, rows = LayerCase(TEXT.format(drawn), normal(2, 3, 20, 20), tops=2, phase=phase).forward()
    if phase == TEST:
        assert not rows.any()
        return
    for each in rows.reshape(2, -1):
        c = read(each)
        assert c["mirror"] == 1 and 0.04 <= c["dx"] <= 0.06 and c["dx"] != c["dy"] and abs(c["angle"]) <= 0.01
        assert c["zoom_x"] == pytest.approx(math.exp(0.3), rel=1e-5) and c["zoom_y"] == pytest.approx(math.exp(-0.1), rel=1e-5)
        assert c["color1"] == 1 and 0.5 < c["gamma"] < 1.5 and c["gamma"] != 1
        assert c["noise"] == pytest.approx(0.01) and c["shadow_strength"] == pytest.approx(0.1) and c["shadow_angle"] == 0


def test_spatial_coefficients_keep_the_corners_inside() -> None:
    rng.set_random_seed(2)
    text = TEXT.format(CROP + "translate { spread: 2 apply_schedule: false }")
    _, rows = LayerCase(text, normal(6, 3, 7, 8), tops=2, phase=TRAIN).forward()
    dx, dy = rows[:, 1, 0, 0] * 4, rows[:, 2, 0, 0] * 3
    assert (dx >= -2).all() and (dx < 2).all() and (dy >= -2).all() and (dy < 2).all() and dx.any()
    far = TEXT.format(CROP + "translate { mean: 9 }")
    assert not LayerCase(far, normal(1, 3, 7, 8), tops=2, phase=TRAIN).forward()[1].any(), "none is found: none is taken"


def test_the_schedule_grows_the_spread() -> None:
    param = caffe_pb2.CoeffScheduleParameter(half_life=100, initial_coeff=0.5, final_coeff=1)
    assert schedule(param, 0) == 0.5
    assert schedule(param, 100) == pytest.approx(0.75, abs=1e-4)
    assert schedule(param, 10**6) == 1


@given(st.integers(1, 3), st.integers(2, 4), st.integers(2, 4))
def test_a_crop_with_no_coefficients_is_a_part_of_the_image(channels: int, height: int, width: int) -> None:
    x = normal(1, channels, height + 2, width + 4)
    (y,) = LayerCase(TEXT.format(f"crop_height: {height} crop_width: {width}"), x).forward()
    np.testing.assert_allclose(y, x[:, :, 1:-1, 2:-2], atol=1e-6)


def test_a_second_reshape() -> None:
    case = LayerCase(TEXT.format(CROP), normal(1, 3, 5, 6))
    case.bottom[0].reshape(2, 3, 7, 8)
    case.bottom[0].data[...] = normal(2, 3, 7, 8)
    assert case.forward()[0].shape == (2, 3, 3, 4)


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ("", [(2, 3, 4)], r"x must be \(N, C, H, W\), got shape \(2, 3, 4\)"),
        (CROP, [(1, 3, 2, 9)], "a crop of 3 x 4 is no part of x, which has 2 x 9 pixels"),
        (CROP, [(2, 3, 5, 6), (1, 42, 1, 1)], r"the coefficients must have shape \(2, 42, 1, 1\), got \(1, 42, 1, 1\)"),
        (CROP + 'zoom { rand_type: "cauchy" }', [(1, 3, 5, 6)], 'rand_type "cauchy" is none of uniform, gaussian, bernoulli'),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(TEXT.format(text), *(np.zeros(shape) for shape in shapes))


def test_another_number_of_channels() -> None:
    case = LayerCase(TEXT.format("recompute_mean: 2"), normal(1, 3, 4, 5))
    case.bottom[0].reshape(1, 2, 4, 5)
    with pytest.raises(LayerError, match="x has 2 channels, but its mean 3"):
        case.forward()


@pytest.mark.parametrize("count", [-1, np.nan, np.inf])
def test_a_stored_count_that_is_none(count: float) -> None:
    case = LayerCase(TEXT.format(""), normal(1, 3, 4, 5))
    case.layer.blobs[0].data[...] = count
    with pytest.raises(LayerError, match=r"the stored number of iterations is .*, which is none"):
        case.forward()
