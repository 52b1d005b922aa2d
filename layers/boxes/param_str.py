"""The settings of py-faster-rcnn's Python layers, from their param_str."""

from __future__ import annotations

from typing import Any

from minicaffe.errors import Error
from minicaffe.formats.param_str import read_yaml
from minicaffe.layer import Layer


def layer_parameters(layer: Layer) -> dict[str, Any]:
    """What a layer's param_str says, as a dict; an attribute param_str or param_str_ that was set since construction wins.

    Raises LayerError for text that is not a mapping.
    """
    written = layer.param.python_param.param_str
    text = layer.param_str if layer.param_str != written else layer.param_str_
    try:
        values = read_yaml(text)
    except Error as error:
        raise layer.error(f"param_str {text!r}: {error}", "python_param.param_str") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise layer.error(f"param_str must be a mapping such as \"'feat_stride': 16\", got {text!r}", "python_param.param_str")
    return {str(key): value for key, value in values.items()}


def whole_parameter(layer: Layer, values: dict[str, Any], key: str) -> int:
    """values[key], a whole number above 0; LayerError where it is absent or anything else."""
    if key not in values:
        raise layer.error(f"param_str must give '{key}', got {values}", "python_param.param_str")
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise layer.error(f"param_str: {key} must be a whole number > 0, got {value!r}", "python_param.param_str")
    if value >= 2**31:
        raise layer.error(f"param_str: {key} must be below 2^31, got {str(value)[:40]}", "python_param.param_str")
    return value
