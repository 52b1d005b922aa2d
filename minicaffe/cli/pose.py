"""pose: the people in images, as positions of their parts and as pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

from minicaffe.data.drawings import Place, draw_people
from minicaffe.data.image_bytes import Pixels
from minicaffe.detection.inputs import image_input
from minicaffe.detection.pose import Skeleton, find_people, map_blobs
from minicaffe.errors import on_one_line
from minicaffe.net import Net
from minicaffe.scaling.batch.sources import Picture

from .common import check_folder
from .image_options import mean_option, scale_factor_option
from .options import FiniteRange, option, with_options
from .pictures import Found, PictureOptions

STRIDE = 8
"""OpenPose's nets halve an image three times: the sides of an input are multiples of this."""
WIDEST = 10 * 16 / 9
"""Greatest width of an input by --height: ten times that of OpenPose's default, 656 x 368. A longer image is scaled to it."""


@dataclass(frozen=True, kw_only=True)
class Options(PictureOptions):
    height: int = option("--height", "Height of the net's input; the width follows.", type=click.IntRange(STRIDE), default=368)
    threshold: float | None = option(
        "--threshold", "Lowest score of a body part.  [default: 0.05; for MPI 0.6]", type=FiniteRange(0, 1)
    )
    out: str | None = option("-o --out", "Draw the people into each image; write it there as a PNG file.", metavar="DIR")
    blob: tuple[str, ...] = option(
        "--blob", "Blob of the maps; give it twice for parts and limbs.  [default: outputs of the right shape]", metavar="BLOB"
    )
    mean: tuple[float, float, float] | None = mean_option("128,128,128")
    scale_factor: float | None = scale_factor_option("1/256")
    axes: str = "hw"

    @property
    def means(self) -> tuple[float, float, float]:
        return super().means or (128.0, 128.0, 128.0)

    @property
    def factor(self) -> float:
        return self.scale_factor or 1 / 256


@with_options(Options)
def pose_command(options: Options) -> None:
    """Find people and their body parts in the images SOURCE... with an OpenPose net.

    A source is an image, a folder, a pattern, a video, a list (.txt, .lst: one path per line), a Parquet file, or a URI.

    The net's outputs are the maps of parts and limbs of COCO (57 maps), MPI (44) or BODY_25 (78). Images are resized to
    --height; the proportions are kept. --out writes NAME_pose.png.

    Example:  minicaffe pose pose_deploy_linevec.prototxt pose_iter_440000.caffemodel street.jpg --out people
    """
    options.use_device()
    check_folder("--out", options.out)
    images = options.images
    net = options.opened()
    remaining = iter(options.output_names(options.out, "_pose.png", options.cfg) if options.out else [])

    def find(picture: Picture) -> Found:
        file = next(remaining, None)
        pixels = picture.pixels()
        people, skeleton = _people(net, pixels, options)
        found = [_person(*one, skeleton) for one in people]
        values, lines = {"image": picture.name, "skeleton": skeleton.name, "people": found}, _lines(picture.name, found)
        if not file:
            return Found(values, lines)
        limbs = [limb for limb in skeleton.limbs if limb not in skeleton.ears]
        drawn = draw_people(pixels, [parts for parts, _ in people], limbs)
        return Found({**values, "file": str(file)}, lines, {file: drawn})

    options.report_each(images, find)


def _people(net: Net, pixels: Pixels, options: Options) -> tuple[list[tuple[dict[int, Place], float]], Skeleton]:
    """Return each person's parts, in pixels of the image, and total score; and the skeleton. Raises Error."""
    name = image_input(net, options.net)
    high, wide = pixels.shape[:2]
    scale = min(options.height / high, WIDEST * options.height / wide)
    height, width = (STRIDE * max(1, round(side * scale / STRIDE)) for side in (high, wide))
    net.blobs[name].reshape(1, net.blobs[name].shape[1], height, width)
    net.reshape()  # outputs are recognised by their shapes
    options.put_pixels(net, name, pixels)
    blobs, skeleton = map_blobs(net, options.blob, options.net)
    made = net.forward(blobs=blobs)
    maps = np.concatenate([np.asarray(made[blob])[0] for blob in blobs])
    people = find_people(maps, skeleton, height, width, options.threshold)
    across, down = wide / width, high / height
    return [
        ({k: ((x + 0.5) * across - 0.5, (y + 0.5) * down - 0.5, score) for k, (x, y, score) in one.parts.items()}, one.total)
        for one in people
    ], skeleton


def _person(parts: Mapping[int, Place], total: float, skeleton: Skeleton) -> dict[str, Any]:
    """Return a person for --json. As in OpenPose, the score is the total divided by the number of parts and limbs."""
    return {
        "score": round(total / (len(skeleton.parts) + len(skeleton.limbs)), 6),
        "parts": {
            skeleton.parts[k]: {"x": round(x, 2), "y": round(y, 2), "score": round(score, 6)}
            for k, (x, y, score) in parts.items()
        },
    }


def _lines(image: str, people: list[dict[str, Any]]) -> list[str]:
    count = f"{len(people)} {'person' if len(people) == 1 else 'people'}" if people else "no people"
    lines = [f"{on_one_line(image)}: {count}"]
    for i, person in enumerate(people, start=1):
        lines.append(f"  {i}: score {person['score']:.2f}, {len(person['parts'])} parts")
        lines += [f"    {name:<10} {at['x']:7.1f} {at['y']:7.1f}  {at['score']:.2f}" for name, at in person["parts"].items()]
    return lines
