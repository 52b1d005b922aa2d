"""Stand-ins for Python layers, and their settings from param_str."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.errors import Error, nearest, pasted, ways
from minicaffe.formats.param_str import read_yaml
from minicaffe.layer import Layer
from minicaffe.layers.python.python import own_module

from .anchor_defaults import NAMES, RATIOS, SCALES, fitting, own_defaults

LONGEST = 40
"""Most characters of a key or a top's name in a message."""

DEFAULTS = {"base_size": 16, "ratios": RATIOS, "scales": SCALES}
"""The defaults of py-faster-rcnn's layers."""
UNREAD = "which cannot be read without running the file: write its numbers in param_str"


class TopName(NamedTuple):
    """The words of which a top's name has one, and the words of another top's name; () for any name."""

    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    def fits(self, name: str) -> bool:
        """Return whether the name fits such a top."""
        found = [word in name.lower() for word in self.has]
        return (any(found) or not found) and not any(word in name.lower() for word in self.lacks)


ANY_NAME = TopName()
ROI_ROWS, ROI_SCORES = TopName(("roi", "box", "proposal"), ("score", "prob")), TopName(("score", "prob", "conf"))
LABELS, TARGETS = TopName(("label",)), TopName(("target", "bbox", "box", "reg"), ("weight", "inside", "outside"))
INSIDE, OUTSIDE = TopName(("weight", "inside"), ("outside",)), TopName(("weight", "outside"), ("inside",))
"""Names of the tops that are rois, their scores, labels, targets of a regression, and its two weights."""


class StandIn(Layer):
    """Base of the stand-ins for Python layers. It refuses unknown keys of param_str and another layer's tops."""

    type = "Python"
    param_block: ClassVar[tuple[str, ...]] = ("python_param",)
    weight_names = ()
    param_keys: ClassVar[tuple[str, ...]] = ()
    """The keys of param_str that the layer reads. A subclass that reads more names them all."""
    inert_keys: ClassVar[tuple[str, ...]] = ()
    """Keys that the original does not read, or that change nothing in the supported phase."""

    @classmethod
    def top_names(cls, count: int) -> Sequence[TopName]:
        """Return the rule for the name of each of `count` tops; () if any names will do."""
        return ()

    def connect(self, bottom: Sequence[Blob], top: Sequence[Blob], is_set_up: Callable[[], None] | None = None) -> None:
        self.check_param_str()
        if self.param.type == "Python":  # the originals fill their tops by position
            self._check_tops()
        super().connect(bottom, top, is_set_up)

    def check_param_str(self) -> None:
        """Raise LayerError for a param_str that the layer cannot read: here one that is no mapping, or has unknown keys."""
        layer_parameters(self)

    def given_text(self) -> str:
        """Return param_str; what a caller has set since construction as param_str or param_str_ takes precedence."""
        return self.param_str if self.param_str != self.param.python_param.param_str else self.param_str_

    def _check_tops(self) -> None:
        tops = self.param.top
        for i, (name, wanted) in enumerate(zip(tops, self.top_names(len(tops)), strict=False)):
            if not wanted.fits(name):
                like = " or ".join(f'"{word}"' for word in wanted.has)
                if any(word in name.lower() for word in wanted.has):
                    like += f" and not {' or '.join(wanted.lacks)}"
                message = (
                    f'top {i} is called "{name[:LONGEST]}", but the built-in layer puts what has {like} in its name there;'
                    f" {self.own_module()}; rename the top if the layer is the same"
                )
                raise self.error(message, f"top[{i}]")

    @property
    def takes_anchors(self) -> bool:
        """True for a Python layer that makes anchors of numbers."""
        return "scales" in self.param_keys and self.param.type == "Python"

    def anchors_hint(self, channels: int) -> str:
        """Return advice on the anchors for this many channels of scores, for a layer that makes them from param_str.

        The model's own generate_anchors.py, next to the prototxt or in its repository, gives the param_str to write.
        """
        if not self.takes_anchors:
            return ""
        found = own_defaults(self.source.place.file) if self.source else None
        if found is None:
            return (
                "; param_str takes 'scales' and 'ratios', and the model's own generate_anchors.py (py-faster-rcnn: lib/rpn) has"
                f" its values; {self.own_module()}"
            )
        given = layer_parameters(self)
        if unread := [text for name, text in found.unread.items() if name not in given]:
            return f"; {found.file} has the default {', '.join(unread)}, {UNREAD}; or {self.own_module()}"
        fits = fitting(found.numbers, given, self.param_keys, channels // 2)
        if fits is None:
            listed = ", ".join(f"{name} {numbers}" for name, numbers in found.numbers.items())
            return f"; {found.file} has {listed}, which do not make {channels // 2} anchors; {self.own_module()}"
        option = ways(f"--anchors {pasted(str(found.file), path=True)}")
        return f'; by {found.file} write param_str: "{fits}"{option and f", or give {option}"}; or {self.own_module()}'

    def anchor_values(self, values: dict[str, Any], channels: int) -> dict[str, Any]:
        """Return param_str's values with the anchors of the settings that it lacks. channels: of the scores.

        The scales may be proposal_layer.py's instead, which passes its own to a generate_anchors.py.
        """
        settings = self.settings
        given: dict[str, list[float]] = {"ratios": list(settings.anchor_ratios), "scales": list(settings.anchor_scales)}
        own = {name: numbers for name, numbers in given.items() if numbers}
        if settings.anchor_base_size != DEFAULTS["base_size"]:
            own["base_size"] = [settings.anchor_base_size]
        if not own:
            return values
        fits = fitting(own, values, ("feat_stride", *NAMES), channels // 2)
        return fits or {**own, **({"base_size": settings.anchor_base_size} if "base_size" in own else {}), **values}

    def warn_of_other_anchors(self, anchors: Array) -> None:
        """Warn if the model's own generate_anchors.py makes as many anchors as these (A, 4), but different ones."""
        found = own_defaults(self.source.place.file) if self.source and self.param.type == "Python" else None
        if found is None:
            return
        given = layer_parameters(self)
        # proposal_layer.py passes scales, so the file's default does not matter.
        unread = [text for name, text in found.unread.items() if name not in given and name != "scales"]
        if unread and "ratios" in self.param_keys:
            self.warn(f"{found.file} has the default {', '.join(unread)}, {UNREAD}", "python_param.param_str")
        fits = fitting(found.numbers, given, ("feat_stride", *NAMES), len(anchors))
        made = {name: fits.get(name, default) for name, default in DEFAULTS.items()} if fits else {}
        used = {name: given.get(name, default) for name, default in DEFAULTS.items()}
        if others := [name for name in made if np.any(np.asarray(made[name], float) != np.asarray(used[name], float))]:
            values = " and ".join(f"{name} {made[name]}, not {used[name]}" for name in others)
            way = f'write param_str: "{fits}"' if set(others) <= set(self.param_keys) else self.own_module()
            self.warn(f"{found.file} makes other anchors: {values}; if the model was trained with these, {way}", "python_param")

    def own_module(self) -> str:
        """Return how to run the model's own layer in place of this one."""
        module = self.param.python_param.module or "MODULE"
        return f"{own_module(module)} runs the model's own layer"


def layer_parameters(layer: StandIn) -> dict[str, Any]:
    """Return a layer's param_str as a dict.

    Raises LayerError for text that is not a mapping, and for keys that the layer does not know.
    """
    text = layer.given_text()
    try:
        values = read_yaml(text)
    except Error as error:
        raise layer.error(f"param_str {text!r}: {error}", "python_param.param_str") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise layer.error(f"param_str must be a mapping such as \"'feat_stride': 16\", got {text!r}", "python_param.param_str")
    for key in map(str, values):
        if key not in (*layer.param_keys, *layer.inert_keys):
            raise _unknown_key(layer, key)
    return {str(key): value for key, value in values.items()}


def _unknown_key(layer: StandIn, key: str) -> Error:
    near = nearest(key, layer.param_keys)
    meant = f", the nearest is '{near[0]}'" if near else ""
    known = ", ".join(layer.param_keys) or "none"
    message = f"param_str: the built-in layer has no key '{key[:LONGEST]}'{meant} (it has: {known}); {layer.own_module()}"
    return layer.error(message, "python_param.param_str")


def whole_parameter(layer: StandIn, values: dict[str, Any], key: str) -> int:
    """Return values[key], a whole number above 0. Raises LayerError if it is missing or anything else."""
    if key not in values:
        raise layer.error(f"param_str must give '{key}', got {values}", "python_param.param_str")
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise layer.error(f"param_str: {key} must be a whole number > 0, got {value!r}", "python_param.param_str")
    if value >= 2**31:
        raise layer.error(f"param_str: {key} must be below 2^31, got {str(value)[:40]}", "python_param.param_str")
    return value
