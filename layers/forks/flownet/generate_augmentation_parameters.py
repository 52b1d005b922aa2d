"""GenerateAugmentationParameters: the coefficients of an augmentation, drawn at random, alone or on top of others.

Source: FlowNet 2's generate_augmentation_parameters_layer.cu (Ilg et al., 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minicaffe import rng
from minicaffe.blob import Array, Blob
from minicaffe.data.state_fields import MOST, Fields
from minicaffe.layer import Layer
from minicaffe.mode import TRAIN

from .coefficients import (
    COLORS,
    DEFAULTS,
    EFFECTS,
    EIGEN,
    SPATIAL,
    Draws,
    check_coefficients,
    check_generators,
    read,
    schedule,
    stored,
)

MODES = ("add", "replace", "regenerate")
PLACED = ("mirror", "dx", "dy", "angle", "zoom_x", "zoom_y")


class GenerateAugmentationParameters(Layer):
    """Coefficients drawn in TRAIN, or with augment_during_test, by the generators of augmentation_param.

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
    index_bottoms = (0, 1, 2)
    in_sequence = True
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
        """Change the row (42,)."""
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
