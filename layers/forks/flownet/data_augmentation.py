"""FlowNet's augmentation: coefficients drawn at random, and applied to images and flows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minicaffe import rng
from minicaffe.blob import Array, Blob
from minicaffe.data.state_fields import MOST, Fields
from minicaffe.forked import LayoutFromWeights
from minicaffe.layer import Costs, Layer, hold_still
from minicaffe.layers.forks.flownet import colors
from minicaffe.layers.forks.flownet.coefficients import (
    COLORS,
    DEFAULTS,
    EFFECTS,
    EIGEN,
    SPATIAL,
    Coefficients,
    Draws,
    check_coefficients,
    check_generators,
    inverse,
    pixel_map,
    read,
    read_or_default,
    schedule,
    stored,
)
from minicaffe.mode import TRAIN

MODES = ("add", "replace", "regenerate")
PLACED = ("mirror", "dx", "dy", "angle", "zoom_x", "zoom_y")


class GenerateAugmentationParameters(Layer):
    """Coefficients drawn by augmentation_param's generators in TRAIN, or with augment_during_test.

    Source: FlowNet 2's generate_augmentation_parameters_layer.cu (Ilg et al., 2017).

    bottom: coefficients (N, 42, 1, 1), the images (N, C, H, W) that they augment, and images of the crop's size; or the
    coefficients alone, or images alone, with crop_height and crop_width (coefficients: also bottomheight and bottomwidth).
    top: coefficients (N, 42, 1, 1), whose spatial ones keep the crop's corners in the image. mode: what becomes of the given
    ones: add, replace (where something is drawn), or regenerate (always with images alone). No gradient.
    Raises LayerError for two bottoms, other shapes, missing sizes, an unknown mode or rand_type.
    """

    type = "GenerateAugmentationParameters"
    num_bottom = (1, 3)
    num_top = 1
    param_block = ("augmentation_param", "coeff_schedule_param")
    weight_names = ()
    has_gradient = False
    stateful = True
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        check_generators(self)
        if len(bottom) == 2:
            raise self.error("takes one bottom or three: coefficients, the images, images of the crop's size", "bottom")
        if self.param.augmentation_param.mode not in MODES:
            message = f'mode "{self.param.augmentation_param.mode}" is none of {", ".join(MODES)}'
            raise self.error(message, "augmentation_param.mode")
        self.iterations = 0

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        aug, first = self.param.augmentation_param, bottom[0]
        if len(first.shape) != 4:
            raise self.error(f"the bottom must have four axes, got shape {first.shape}", "bottom[0]")
        images_alone = len(bottom) == 1 and (first.width > 1 or first.height > 1)
        self.mode = "regenerate" if images_alone else aug.mode
        if not images_alone:
            check_coefficients(self, first.shape, first.num, "bottom[0]")
        if len(bottom) == 3:
            self.image, self.crop = ((blob.height, blob.width) for blob in bottom[1:])
        else:
            self.crop = (aug.crop_height, aug.crop_width)
            self.image = (first.height, first.width) if images_alone else (aug.bottomheight, aug.bottomwidth)
            if not all(self.crop):
                raise self.error("needs crop_height and crop_width", "augmentation_param")
            if not all(self.image):
                raise self.error("needs bottomheight and bottomwidth, the images' size", "augmentation_param")
        top[0].reshape(first.num, len(DEFAULTS), 1, 1)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        aug = self.param.augmentation_param
        self.iterations += 1
        count = schedule(self.param.coeff_schedule_param, self.iterations)
        draws = Draws(aug, count, rng.generator())
        is_drawn = self.phase == TRAIN or aug.augment_during_test
        rows = top[0].data.reshape(top[0].shape[:2])
        for n, row in enumerate(rows):
            row[...] = 0 if self.mode == "regenerate" else bottom[0].data[n].reshape(-1)
            if is_drawn:
                self._draw(draws, row)

    def _draw(self, draws: Draws, row: Array) -> None:
        """Draw coefficients and write them to the row (42,)."""
        if draws.given(SPATIAL):
            kept = read(row)
            if self.mode == "replace":
                kept = {name: value for name, value in kept.items() if name not in PLACED}
            row[...] = stored(draws.inside(stored(kept), self.crop, self.image))
        for generators, draw in (
            (tuple(COLORS), draws.colors),
            (tuple(EIGEN), draws.eigen),
            (tuple(name for effect in EFFECTS for name in effect), draws.effects),
        ):
            if draws.given(generators):
                drawn = draw()
                if self.mode == "add":
                    row += stored(drawn)
                else:
                    chosen = np.isin(list(DEFAULTS), list(drawn))
                    row[chosen] = stored(drawn)[chosen]

    def training_state(self) -> dict[str, Any]:
        return {"iterations": self.iterations}

    def restore_training_state(self, state: dict[str, Any]) -> None:
        self.iterations = Fields(state).whole("iterations", 0, MOST)


NAMES = ("iterations", "mean", "channel_mean")


class DataAugmentation(LayoutFromWeights):
    """Crops of crop_height x crop_width, augmented in TRAIN or with augment_during_test, less the mean.

    Augmented images are rotated, zoomed and recoloured at random. The layer computes and stores the mean.

        y[c, i, j] = x[c, at (j, i) mapped by the coefficients, bilinearly], recoloured - mean

    Source: FlowNet 2's data_augmentation_layer.cu (Ilg et al., 2017).

    bottom: x (N, C, H, W); optionally the coefficients (N, 42, 1, 1) to augment by, else they are drawn. top: y (N, C, h, w);
    optionally the coefficients. Without a crop nothing is augmented. Even unaugmented, the last row and column of a crop are
    a twentieth of the one before them. A colour step needs three channels; write_augmented and write_mean write nothing.
    recompute_mean: the number of batches, in TEST too, that go into the stored mean, which is subtracted: per pixel, or with
    mean_per_pixel: false per channel; a mean of another size is taken per channel. Otherwise three values of mean are
    subtracted if mean_per_pixel is false. blobs: iterations (1, 1, 1, 1), mean (1, C, h, w), channel_mean (1, C, 1, 1); without
    recompute_mean the first alone. No gradient.
    Raises LayerError for other shapes, a crop larger than x, an unknown rand_type, and chromatic_eigvec of other than 9 values.
    """

    type = "DataAugmentation"
    num_bottom = (1, 2)
    num_top = (1, 2)
    param_block = ("augmentation_param", "coeff_schedule_param")
    weight_names = NAMES
    has_gradient = False
    copies = (2, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        check_generators(self)
        self.aug = self.param.augmentation_param
        self.stateful = True  # the mean and the schedule continue from forward to forward
        if not self.blobs:
            crop = self._crop(bottom[0])
            mean = [(1, bottom[0].channels, *crop), (1, bottom[0].channels, 1, 1)] if self.aug.recompute_mean else []
            for shape in [(1, 1, 1, 1), *mean]:
                self.blobs.add_blob(*shape)
        hold_still(self, [False] * len(self.blobs))

    def adopt_layout(self, shapes: Sequence[Sequence[int]]) -> bool:
        """Accept stored means of another size. Without recompute_mean they are kept unused."""
        have = [blob.shape for blob in self.blobs]
        wanted = [tuple(shape) for shape in shapes]
        kept = len(wanted) == 3 and len(wanted[1]) == 4 and wanted[1][:2] == (1, self.channels)
        if not kept or have == wanted or wanted[2] != (1, self.channels, 1, 1):
            return False
        del self.blobs[:]
        for shape in wanted:
            self.blobs.add_blob(*shape)
        hold_still(self, [False] * len(self.blobs))
        return True

    def _crop(self, x: Blob) -> tuple[int, int]:
        """Return the height and width of y."""
        if len(x.shape) != 4:
            raise self.error(f"x must be (N, C, H, W), got shape {x.shape}", "bottom[0]")
        self.is_cropped = self.aug.HasField("crop_height") and self.aug.HasField("crop_width")
        crop = (self.aug.crop_height, self.aug.crop_width) if self.is_cropped else x.shape[2:]
        if min(crop) < 1 or crop[0] > x.height or crop[1] > x.width:
            message = f"a crop of {crop[0]} x {crop[1]} is no part of x, which has {x.height} x {x.width} pixels"
            raise self.error(message, "augmentation_param")
        self.channels = x.channels
        return crop[0], crop[1]

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x = bottom[0].shape
        self.crop = self._crop(bottom[0])
        if self.aug.recompute_mean and self.blobs[2].count != x[1]:
            raise self.error(f"x has {x[1]} channels, but its mean {self.blobs[2].count}", "bottom[0]")
        if len(bottom) > 1:
            check_coefficients(self, bottom[1].shape, x[0], "bottom[1]")
        top[0].reshape(x[0], x[1], *self.crop)
        if len(top) > 1:
            top[1].reshape(x[0], len(DEFAULTS), 1, 1)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        return super().costs(bottom, top, propagate_down)._replace(multiply_adds=0)

    def running_blobs(self) -> Sequence[Blob]:
        return self.blobs

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = bottom[0].data, top[0].data
        count = self.blobs[0].data
        if not (np.isfinite(count).all() and count.min() >= 0):
            raise self.error(f"the stored number of iterations is {count.flat[0]:g}, which is none", "blobs")
        count[...] = np.floor(count) + 1
        rows = bottom[1].data.reshape(len(x), -1) if len(bottom) > 1 else np.zeros((len(x), len(DEFAULTS)), np.float32)
        if self.is_cropped:
            if len(bottom) == 1:
                rows = self._drawn(len(x), float(count.flat[0]), x.shape[2:])
            self._augment(x, [read_or_default(row) for row in rows], y)
        else:
            y[...] = x
        if len(top) > 1:
            top[1].data[...] = rows.reshape(top[1].shape)
        self._subtract_mean(y, int(count.flat[0]))

    def _drawn(self, images: int, iteration: float, size: tuple[int, ...]) -> Array:
        """Return rows (N, 42) of drawn coefficients."""
        rows = np.zeros((images, len(DEFAULTS)), np.float32)
        if self.phase != TRAIN and not self.aug.augment_during_test:
            return rows
        draws = Draws(self.aug, schedule(self.param.coeff_schedule_param, iteration), rng.generator())
        for row in rows:
            drawn: Coefficients = {}
            if draws.given(SPATIAL):
                drawn |= draws.inside(row, self.crop, (size[0], size[1]))
            if draws.given(COLORS):
                drawn |= draws.colors()
            if draws.given(EIGEN):
                drawn |= draws.eigen()
            if draws.given(name for effect in EFFECTS for name in effect):
                drawn |= draws.effects()
            row[...] = stored(drawn)
        return rows

    def _augment(self, x: Array, coefficients: list[Coefficients], y: Array) -> None:
        most = self.aug.max_multiplier
        for n, each in enumerate(coefficients):
            sample(x[n], pixel_map(each, self.crop, x.shape[2:]), y[n])
        if any(colors.differs(each, colors.EIGEN_NAMES) for each in coefficients):
            self._check_channels("augmentation_param")
            if len(self.aug.chromatic_eigvec) != 9:
                message = f"chromatic_eigvec must have 9 values, got {len(self.aug.chromatic_eigvec)}"
                raise self.error(message, "augmentation_param.chromatic_eigvec")
            space = colors.EigenSpace(x, np.array(self.aug.chromatic_eigvec, x.dtype).reshape(3, 3))
            for image, each in zip(y, coefficients, strict=True):
                space.change(image, each, most)
        if any(colors.differs(each, colors.COLOR_NAMES) for each in coefficients):
            self._check_channels("augmentation_param")
            for image, each in zip(y, coefficients, strict=True):
                colors.change_colors(image, each, most)
        if any(map(colors.has_effect, coefficients)):
            self._check_channels("augmentation_param")
            for image, each in zip(y, coefficients, strict=True):
                colors.apply_effects(image, each, most, rng.generator())

    def _check_channels(self, place: str) -> None:
        if self.channels != 3:
            raise self.error(f"colours and effects need images of 3 channels, got {self.channels}", place)

    def _subtract_mean(self, y: Array, iteration: int) -> None:
        aug = self.aug
        if not aug.recompute_mean:
            if len(aug.mean) == 3 and not aug.mean_per_pixel:
                self._check_channels("augmentation_param.mean")
                y -= np.array(aug.mean, y.dtype).reshape(1, 3, 1, 1)
            return
        mean, channel_mean = (blob.data for blob in self.blobs[1:])
        fits = mean.shape[2:] == y.shape[2:]
        if iteration == 1 and self.phase != TRAIN:
            self.warn("no mean is stored: it is computed from the images that come", "augmentation_param.recompute_mean")
        if iteration <= aug.recompute_mean:
            batch = y.mean(axis=0, keepdims=True)
            mean *= y.dtype.type(iteration - 1)
            mean += batch if fits else batch.mean(axis=(2, 3), keepdims=True)
            mean /= y.dtype.type(iteration)
            channel_mean[...] = mean.mean(axis=(2, 3), keepdims=True)
        if not aug.mean_per_pixel:
            y -= channel_mean
        else:
            y -= mean if fits else mean.mean(axis=(2, 3), keepdims=True)


def sample(x: Array, places: Array, y: Array) -> None:
    """Sample y (C, h, w) of x (C, H, W) bilinearly at the positions of the map (2, 3).

    They are clipped to [0, size - 1.05] on each axis.
    """
    f = np.float32
    height, width = x.shape[1:]
    j, i = np.meshgrid(np.arange(y.shape[2], dtype=f), np.arange(y.shape[1], dtype=f))
    at_x, at_y = (j * row[0] + i * row[1] + row[2] for row in places)
    # fmax and fmin replace NaN with the other argument.
    at_x, at_y = np.fmax(0, np.fmin(at_x, f(width) - f(1.05))), np.fmax(0, np.fmin(at_y, f(height) - f(1.05)))
    left, above = np.floor(at_x).astype(np.intp), np.floor(at_y).astype(np.intp)
    right, below = np.minimum(left + 1, width - 1), np.minimum(above + 1, height - 1)
    part_x, part_y = (at_x - left.astype(f)).astype(x.dtype), (at_y - above.astype(f)).astype(x.dtype)
    y[...] = (1 - part_x) * (1 - part_y) * x[:, above, left] + part_x * part_y * x[:, below, right]
    y += (1 - part_x) * part_y * x[:, below, left] + part_x * (1 - part_y) * x[:, above, right]


class FlowAugmentation(Layer):
    """The flow of crops of crop_height x crop_width whose images were augmented by these coefficients.

        y[i, j] = map2^-1(p + flow[at p, rounded]) - (j, i),  p = map1(j, i)

    Source: FlowNet 2's flow_augmentation_layer.cu (Ilg et al., 2017).

    bottom: flow (N, 2, H, W), right and down in pixels; the coefficients (N, 42, 1, 1) of the first and of the second image.
    top: the flow (N, 2, h, w). A place beyond the image takes the flow at its edge, where the original reads other memory. No
    gradient.
    Raises LayerError for other shapes, and without a crop.
    """

    type = "FlowAugmentation"
    num_bottom = 3
    num_top = 1
    param_block = ("augmentation_param",)
    weight_names = ()
    has_gradient = False
    copies = (2, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.crop = (self.param.augmentation_param.crop_height, self.param.augmentation_param.crop_width)
        if not all(self.crop):
            raise self.error("needs crop_height and crop_width", "augmentation_param")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        flow = bottom[0].shape
        if len(flow) != 4 or flow[1] != 2 or not all(flow[2:]):
            raise self.error(f"the flow must be (N, 2, H, W), got shape {flow}", "bottom[0]")
        for i in (1, 2):
            check_coefficients(self, bottom[i].shape, flow[0], f"bottom[{i}]")
        top[0].reshape(flow[0], 2, *self.crop)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for flow, first, second, y in zip(*(blob.data for blob in bottom), top[0].data, strict=True):
            maps = [pixel_map(read(row.reshape(-1)), self.crop, flow.shape[1:]) for row in (first, second)]
            moved(flow, maps[0], inverse(maps[1]), y)


def moved(flow: Array, first: Array, second: Array, y: Array) -> None:
    """Compute y (2, h, w) from a flow (2, H, W).

    first (2, 3) maps positions of the crop to the image; second maps those of the second image to its crop.
    """
    size = np.array(flow.shape[:0:-1])
    crop = np.mgrid[: y.shape[1], : y.shape[2]][::-1].astype(np.float32)
    places = _mapped(first, crop)
    # fmax and fmin replace NaN with the other argument.
    near = np.fmax(0, np.fmin(np.trunc(places + np.float32(0.5)), (size - 1).reshape(2, 1, 1))).astype(np.intp)
    y[...] = _mapped(second, places + flow[:, near[1], near[0]].astype(np.float32)) - crop


def _mapped(whole: Array, places: Array) -> Array:
    """Return positions (2, h, w), x and y, mapped by whole (2, 3)."""
    mapped: Array = np.einsum("ab,bij->aij", whole[:, :2], places) + whole[:, 2].reshape(2, 1, 1)
    return mapped
