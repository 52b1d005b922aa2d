"""train's --augment: SSD's augmentation for nets that begin with RoIData."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from minicaffe.data.settings import AUGMENTATION, DetectionSettings
from minicaffe.errors import Error, SettingsError, nearest
from minicaffe.layers.proposal.roi_data import RoIData
from minicaffe.layers.ssd.annotated_data import AnnotatedData
from minicaffe.net import Net

from .image_options import SettingsOptions
from .options import option
from .terminal import echo

USUAL = {"distort": 1.0, "channel_order": 0.5, "expand": 4.0, "crop": 0.3}
"""The value of each part of --augment that is given without one: SSD's, which leaves channel_order at 0."""


def parts_of(text: str) -> dict[str, Any]:
    """Return the settings of --augment by name. Raises Error."""
    parts: dict[str, Any] = {}
    for item in text.split(","):
        name, equals, value = item.strip().partition("=")
        if name not in AUGMENTATION:
            near = nearest(name, AUGMENTATION, least=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise Error(f'--augment {text}: "{name}" is not one of {", ".join(AUGMENTATION)}{hint}')
        try:
            parts[name] = float(value) if equals else USUAL[name]
        except ValueError:
            raise Error(f'--augment {text}: "{value}" is not a number: write {name}={USUAL[name]:g}') from None
    return parts


@dataclass(frozen=True, kw_only=True)
class AugmentOptions(SettingsOptions):
    """--cfg, and --augment, which replaces its augmentation."""

    heading: ClassVar[str] = "Data"
    augment: str | None = option(
        "--augment",
        "Change images at random, for nets that begin with RoIData: distort, channel_order, expand, crop, or some of them with"
        " values, as in distort,expand=2.  [default: as in --cfg, or none]",
        metavar="PARTS",
    )

    @cached_property
    def settings(self) -> DetectionSettings:
        settings = super().settings
        if self.augment is None:
            return settings
        try:
            train = dataclasses.replace(settings.train, **parts_of(self.augment))
        except SettingsError as error:
            raise Error(f"--augment {self.augment}: {error}") from error
        return dataclasses.replace(settings, train=train)

    def tell_augmentation(self, net: Net) -> None:
        """Print the augmentation. Raises Error for a net without RoIData, where it has no effect."""
        parts = self.settings.train.augmentation
        if not parts and not self.augment:
            return
        if not any(isinstance(layer, RoIData) for layer in net.layers):
            keys = ", ".join(f"TRAIN.{name.upper()}" for name in parts)
            source = f"--augment {self.augment}:" if self.augment else f"{self.cfg}: {keys}"
            reader = next((layer for layer in net.layers if isinstance(layer, AnnotatedData)), None)
            way = "leave it out"
            if reader:
                way = f'layer "{reader.name}" (AnnotatedData) augments by its transform_param and batch_sampler: change these'
            raise Error(f"{source} has no effect, because no layer of {net.file} is RoIData; {way}")
        echo(f"augmentation: {', '.join(f'{name} {value:g}' for name, value in parts.items()) or 'none'}")
