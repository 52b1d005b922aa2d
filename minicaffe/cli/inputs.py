"""The options by which commands take inputs: files, shapes, and how images are made ready."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import click

from minicaffe.data.settings import DetectionSettings, read_settings
from minicaffe.errors import Error
from minicaffe.net import Net

from .common import numbers

input_option = click.option(
    "--input", "inputs", multiple=True, metavar="BLOB=FILE", help="A .npy file or an image for an input blob; may be repeated."
)
shape_option = click.option(
    "--shape", "shapes", multiple=True, metavar="BLOB=N,C,H,W", help="Another shape for an input; may be repeated."
)
cfg_option = click.option(
    "--cfg", metavar="FILE.yml", help="Detection settings in py-faster-rcnn's format: how many proposals, for one."
)
factor_option = click.option(
    "--scale-factor", default=1.0, show_default=True, help="Multiplies images after the mean is subtracted."
)


def parse_inputs(inputs: Sequence[str]) -> dict[str, str]:
    """["data=cat.jpg"] -> {"data": "cat.jpg"}."""
    files = {}
    for text in inputs:
        name, equals, file = text.partition("=")
        if not equals:
            raise Error(f"--input {text}: write it as BLOB=FILE")
        files[name] = file
    return files


def with_image(net: Net, files: dict[str, str], image: str | None) -> dict[str, str]:
    """The files of --input, and --image for the net's image input. Raises Error for a net without one."""
    if not image:
        return files
    names = image_inputs(net)
    if not names:
        raise Error(f"--image {image}: the net has no input for an image; its inputs are {', '.join(net.inputs) or 'none'}")
    return {names[0]: image, **files}


def image_inputs(net: Net) -> list[str]:
    """The inputs that an image fits: (N, 3, H, W) or (N, 1, H, W)."""
    shapes = {name: net.blobs[name].shape for name in net.inputs}
    return [name for name, shape in shapes.items() if len(shape) == 4 and shape[1] in (1, 3)]


def blob_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """BLOB=N,C,H,W as a name and a shape."""
    name, _, dims = text.partition("=")
    try:
        return name, tuple(int(d) for d in dims.replace("x", ",").split(","))
    except ValueError:
        raise Error(f"--shape {text}: write it as BLOB=N,C,H,W") from None


def reshape_inputs(net: Net, shapes: Sequence[str]) -> None:
    """Give a net's inputs the shapes of --shape options. Raises Error for a blob that is no input."""
    for text in shapes:
        name, dims = blob_shape(text)
        if name not in net.inputs:
            raise Error(f"--shape {text}: the net's inputs are {', '.join(net.inputs) or 'none'}")
        net.blobs[name].reshape(dims)


def settings_given(
    cfg: str | None = None,
    *,
    scale: int | None = None,
    max_size: int | None = None,
    mean: str | None = None,
    nms: float | None = None,
) -> DetectionSettings:
    """The settings of --cfg, or the defaults, with what the other options change."""
    settings = read_settings(cfg) if cfg else DetectionSettings()
    test = settings.test
    if scale is not None:
        test = dataclasses.replace(test, scales=(scale,))
    if max_size is not None:
        test = dataclasses.replace(test, max_size=max_size)
    if nms is not None:
        test = dataclasses.replace(test, nms=nms)
    return with_mean(dataclasses.replace(settings, test=test), mean)


def with_mean(settings: DetectionSettings, mean: str | None) -> DetectionSettings:
    """The settings with --mean's numbers, if it is given."""
    if not mean:
        return settings
    blue, green, red = numbers("--mean", mean, 3)
    return dataclasses.replace(settings, pixel_means=(blue, green, red))
