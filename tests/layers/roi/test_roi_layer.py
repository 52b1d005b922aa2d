"""What the four ROI layers share: checked rois, 0 rois, shapes of rois, float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from layer_case import LayerCase

from minicaffe import TEST, Net, ops
from minicaffe.errors import Error, LayerError

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]

LAYERS = {
    "ROIPooling": "type: 'ROIPooling' roi_pooling_param {{ pooled_h: 2 pooled_w: 2 spatial_scale: {scale} }}",
    "ROIAlign max": "type: 'ROIAlign' roi_align_param {{ pooled_h: 2 pooled_w: 2 spatial_scale: {scale} }}",
    "ROIAlign mean": "type: 'ROIAlign' roi_align_param {{ pooled_h: 2 pooled_w: 2 spatial_scale: {scale} pool: AVE }}",
    "ROIWarping": "type: 'ROIWarping' roi_warping_param {{ pooled_h: 2 pooled_w: 2 spatial_scale: {scale} }}",
    "PSROIPooling": "type: 'PSROIPooling' psroi_pooling_param {{ output_dim: 3 group_size: 2 spatial_scale: {scale} }}",
    "PSROIAlign": "type: 'PSROIAlign' psroi_align_param {{ output_dim: 3 group_size: 2 spatial_scale: {scale} }}",
}
all_layers = pytest.mark.parametrize("name", LAYERS)
X = np.random.default_rng(5).standard_normal((2, 12, 5, 7))
GOOD = [1.0, 0, 2, 8, 6]


def case(name: str, rois: object, *, scale: object = 0.5, dtype: object = np.float64, x: np.ndarray = X) -> LayerCase:
    return LayerCase(LAYERS[name].format(scale=scale), x, np.asarray(rois), dtype=dtype)


@all_layers
@pytest.mark.parametrize(
    ("roi", "message"),
    [
        ([2, 0, 0, 4, 4], "roi 1 is .*: the batch index is out of range: the batch has 2 images"),
        ([-1, 0, 0, 4, 4], "roi 1 is .*: the batch index is out of range: the batch has 2 images"),
        ([0.5, 0, 0, 4, 4], r"roi 1 is \[0.5, 0.0, 0.0, 4.0, 4.0\]: the batch index is not a whole number"),
        ([np.nan, 0, 0, 4, 4], "roi 1 is .*: the batch index is not a whole number"),
        ([0, 0, np.nan, 4, 4], "roi 1 is .*nan.*: a coordinate is NaN or infinite"),
        ([0, 0, 0, np.inf, 4], "roi 1 is .*inf.*: a coordinate is NaN or infinite"),
        ([0, 0, 0, 1e30, 4], "roi 1 is .*: a coordinate is beyond 536870912 pixels of the image or the map"),
    ],
)
def test_bad_rois(name: str, roi: list[float], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        case(name, [GOOD, roi]).forward()
    with pytest.raises(LayerError, match='layer "layer": roi 1'):
        case(name, [GOOD, roi]).backward(np.zeros((2, 12 if name.startswith("ROI") else 3, 2, 2)))


@all_layers
@pytest.mark.parametrize("shape", [(3, 4), (3, 6), (15,), (3, 5, 1), (3, 5, 2, 1)])
def test_rois_of_another_width(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(LayerError, match=r"rois must have shape \(R, 5\) or \(R, 5, 1, 1\), got \(" + str(shape)[1:-1]):
        case(name, np.zeros(shape))


@all_layers
def test_a_map_of_another_number_of_axes(name: str) -> None:
    with pytest.raises(LayerError, match=r"the feature map must have 4 axes \(N, C, H, W\), got shape \(12, 5, 7\)"):
        case(name, [GOOD], x=X[0])


@all_layers
@pytest.mark.parametrize("scale", ["nan", "inf", "-inf"])
def test_a_scale_that_is_not_finite(name: str, scale: str) -> None:
    with pytest.raises(LayerError, match=f"spatial_scale must be finite, got {scale}"):
        case(name, [GOOD], scale=scale)


@pytest.mark.parametrize("field", ["pooled_h", "pooled_w"])
@pytest.mark.parametrize("kind", ["ROIPooling: roi_pooling_param", "ROIAlign: roi_align_param", "ROIAlign: roi_pooling_param"])
def test_no_bins(kind: str, field: str) -> None:
    layer, block = kind.split(": ")
    text = f"type: '{layer}' {block} {{ pooled_h: 2 pooled_w: 3 {field}: 0 }}"
    with pytest.raises(LayerError, match=f'{layer} layer "layer": {field} must be > 0, got 0'):
        LayerCase(text, X, [GOOD])


@pytest.mark.parametrize("field", ["output_dim", "group_size"])
@pytest.mark.parametrize("kind", ["PSROIPooling: psroi_pooling_param", "PSROIAlign: psroi_align_param"])
@pytest.mark.parametrize("value", [0, -3])
def test_no_groups(kind: str, field: str, value: int) -> None:
    layer, block = kind.split(": ")
    text = f"type: '{layer}' {block} {{ spatial_scale: 1 output_dim: 3 group_size: 2 {field}: {value} }}"
    with pytest.raises(LayerError, match=f'{layer} layer "layer": {field} must be > 0, got {value}'):
        LayerCase(text, X, [GOOD])


@pytest.mark.parametrize("name", ["PSROIPooling", "PSROIAlign"])
def test_channels_that_do_not_match(name: str) -> None:
    message = r"the feature map has 11 channels, but output_dim \* group_size\^2 = 3 \* 2\^2 = 12 are needed"
    with pytest.raises(LayerError, match=message):
        case(name, [GOOD], x=X[:, :11])


@pytest.mark.parametrize("layer", ["PSROIPooling: psroi_pooling_param", "PSROIAlign: psroi_align_param"])
def test_no_spatial_scale(layer: str) -> None:
    kind, block = layer.split(": ")
    with pytest.raises(LayerError, match="spatial_scale must be given"):
        LayerCase(f"type: '{kind}' {block} {{ output_dim: 3 group_size: 2 }}", X, [GOOD])


def test_an_error_names_the_field_and_its_place(tmp_path: Path) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text("""name: "n"
layer { name: "in" type: "Input" top: "x" top: "rois"
  input_param { shape { dim: 1 dim: 2 dim: 5 dim: 7 } shape { dim: 3 dim: 5 } } }
layer { name: "roi_pool5" type: "ROIPooling" bottom: "x" bottom: "rois" top: "y"
  roi_pooling_param {
    pooled_w: 7
    pooled_h: 0
  } }
""")
    with pytest.raises(LayerError, match=r'ROIPooling layer "roi_pool5": pooled_h must be > 0, got 0 \(.*net.prototxt:7\)'):
        Net(net, TEST)


@pytest.mark.usefixtures("definitions_way")
@all_layers
@pytest.mark.parametrize("shape", [(0, 5), (0, 5, 1, 1)])
def test_no_rois(name: str, shape: tuple[int, ...]) -> None:
    nothing = case(name, np.zeros(shape))
    channels = 3 if name.startswith("PS") else 12
    assert nothing.forward()[0].shape == (0, channels, 2, 2)
    nothing.bottom[0].diff[...] = 7
    dx, drois = nothing.backward()
    assert dx.shape == X.shape and not dx.any() and drois.shape == shape


@pytest.mark.usefixtures("definitions_way")
@all_layers
def test_rois_with_4_axes_are_the_same(name: str) -> None:
    rois = np.array([GOOD, [0, 1, 1, 9, 9]])
    flat, deep = case(name, rois), case(name, rois.reshape(2, 5, 1, 1))
    np.testing.assert_array_equal(flat.forward(), deep.forward())
    dy = np.ones(flat.top[0].shape)
    np.testing.assert_array_equal(flat.backward(dy)[0], deep.backward(dy)[0])


@pytest.mark.usefixtures("definitions_way")
@all_layers
def test_each_roi_reads_its_own_image_and_images_without_rois_get_no_gradient(name: str) -> None:
    x = np.concatenate([np.full_like(X, np.nan), X])
    rois = [[3, 0, 2, 8, 6], [2, 1, 1, 9, 9]]
    far, near = case(name, rois, x=x), case(name, [[1, 0, 2, 8, 6], [0, 1, 1, 9, 9]])
    np.testing.assert_allclose(far.forward()[0], near.forward()[0], rtol=1e-12)
    dy = np.ones(far.top[0].shape)
    dx = far.backward(dy)[0]
    np.testing.assert_allclose(dx[2:], near.backward(dy)[0], rtol=1e-12)
    assert not dx[:2].any()


@pytest.mark.usefixtures("definitions_way")
@all_layers
def test_rois_in_any_order_and_repeated(name: str) -> None:
    rois = np.array([GOOD, [0, 1, 1, 9, 9], GOOD])
    y = case(name, rois).forward()[0]
    np.testing.assert_array_equal(y[0], y[2])
    np.testing.assert_allclose(case(name, rois[::-1]).forward()[0], y[::-1], rtol=1e-12)


@pytest.mark.usefixtures("definitions_way")
@all_layers
def test_float32_and_float64_agree_and_keep_their_type(name: str) -> None:
    single, double = case(name, [GOOD], dtype=np.float32), case(name, [GOOD])
    y, z = single.forward()[0], double.forward()[0]
    assert (y.dtype, z.dtype) == (np.float32, np.float64)
    np.testing.assert_allclose(y, z, rtol=1e-4, atol=1e-5)
    dy = np.ones(y.shape)
    np.testing.assert_allclose(single.backward(dy)[0], double.backward(dy)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("definitions_way")
@all_layers
def test_a_map_without_pixels_has_only_empty_bins(name: str) -> None:
    empty = case(name, [GOOD], x=np.zeros((2, 12, 0, 7)))
    assert not empty.forward()[0].any()
    assert empty.backward(np.ones(empty.top[0].shape))[0].shape == (2, 12, 0, 7)


@pytest.mark.usefixtures("definitions_way")
@all_layers
def test_coordinates_at_the_limit(name: str) -> None:
    assert np.isfinite(case(name, [[0, -(2.0**29), 0, 2.0**29, 4]], dtype=np.float32).forward()[0]).all()


def test_the_functions_check_their_arrays() -> None:
    rois = np.array([GOOD])
    with pytest.raises(Error, match=r"roi 0 is .*: the batch index is out of range: the batch has 1 images"):
        ops.roi_pool(X[:1], rois, 2, 2, 1.0)
    with pytest.raises(Error, match="the feature map must have 4 axes"):
        ops.roi_align(X[0], rois, 2, 2, 1.0)
    with pytest.raises(Error, match=r"rois must have shape \(R, 5\)"):
        ops.roi_align_max(X, rois[:, :4], 2, 2, 1.0)
    with pytest.raises(Error, match=r"12 channels are not a multiple of group_size\^2 = 25"):
        ops.ps_roi_pool(X, rois, 5, 1.0)
    with pytest.raises(Error, match="spatial_scale must be finite, got nan"):
        ops.ps_roi_align(X, rois, 2, float("nan"))


def test_the_functions_take_other_number_types() -> None:
    y = ops.roi_pool(np.arange(12).reshape(1, 1, 3, 4), [[0, 0, 0, 3, 2]], 1, 1, 1)
    assert y.dtype == np.float32 and y.item() == 11
