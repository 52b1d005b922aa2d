"""minicaffe export --with-image --with-boxes: a whole detector as one model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from minicaffe.data.image_bytes import read_image
from minicaffe.detection.class_names import read_names
from minicaffe.detection.family import SSD_MEANS
from minicaffe.errors import Error
from minicaffe.net import Net
from minicaffe.porting.agreement import Difference

from .groups import classes_option
from .image_options import InputOptions
from .options import FiniteRange, option

if TYPE_CHECKING:
    from minicaffe.porting.onnx import Whole

THRESHOLD, MOST = 0.5, 100


@dataclass(frozen=True, kw_only=True)
class WholeOptions:
    """The ends of a detector."""

    with_image: bool = option("--with-image", "Take a photo, uint8 H x W x 3 (blue, green, red), of any size, and prepare it.")
    with_boxes: bool = option("--with-boxes", "Give boxes, scores and classes as detect does, not the net's outputs.")
    threshold: float | None = option(
        "--threshold", f"--with-boxes: lowest score of a box.  [default: {THRESHOLD}]", type=FiniteRange(0, 1)
    )
    max_detections: int | None = option(
        "--max-detections", f"--with-boxes: most boxes.  [default: {MOST}]", type=click.IntRange(1)
    )
    classes: str | None = classes_option()

    def whole(self, options: InputOptions) -> Whole | None:
        """What the model has beside the net; None for nothing. Raises Error for options that need it."""
        from minicaffe.porting.onnx import Whole

        if not self.with_boxes:
            for name, value in {"--threshold": self.threshold, "--max-detections": self.max_detections}.items():
                if value is not None:
                    raise Error(f"{name} does nothing without --with-boxes")
        if not (self.with_boxes or self.with_image):
            return None
        if options.rgb:
            raise Error("--rgb: a whole detector takes blue, green, red")
        return Whole(
            photo=self.with_image,
            boxes=self.with_boxes,
            threshold=THRESHOLD if self.threshold is None else self.threshold,
            max_detections=self.max_detections or MOST,
            means=options.means or SSD_MEANS,
            scale_factor=options.factor,
            classes=read_names(self.classes) if self.classes else None,
        )


def whole_check(net: Net, model: Path, options: InputOptions, whole: Whole) -> list[Difference]:
    """The differences from detect on the photo of --input, or on noise. Raises Error."""
    from minicaffe.porting.onnx import compare_with_detect

    if not whole.boxes:
        raise Error("--check with --with-image compares boxes: give --with-boxes too")
    files = list(dict(options.inputs).values())
    if len(files) > 1:
        raise Error("--input: a whole detector takes one photo")
    noise = np.random.default_rng(0).integers(0, 256, (375, 500, 3), np.uint8)
    return compare_with_detect(net, model, read_image(files[0]) if files else noise, whole)
