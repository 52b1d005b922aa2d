"""Names that newer NumPy and PyYAML dropped, restored for old scripts in the process of `minicaffe script`."""

from __future__ import annotations

from typing import Any

import numpy as np

NUMPY_NAMES: dict[str, Any] = {
    "bool": bool, "int": int, "float": float, "complex": complex, "object": object, "str": str, "long": int, "unicode": str,
    "float_": np.float64, "complex_": np.complex128, "string_": np.bytes_, "unicode_": np.str_,
    "Inf": np.inf, "Infinity": np.inf, "infty": np.inf, "PINF": np.inf, "NINF": -np.inf, "NaN": np.nan, "NAN": np.nan,
    "product": np.prod, "cumproduct": np.cumprod, "alltrue": np.all, "sometrue": np.any, "round_": np.round,
    "row_stack": np.vstack, "asscalar": lambda a: a.item(), "in1d": lambda a, b, **how: np.isin(np.ravel(a), b, **how),
}  # fmt: skip
"""np.float and the like, aliases of Python's types, which NumPy 1.24 removed, and what NumPy 1.23 to 2.4 removed."""


def restore_old_names() -> None:
    """Restore NUMPY_NAMES, np.fromstring of bytes, and yaml.load(text) without a Loader, of plain data and tuples."""
    for name, meaning in NUMPY_NAMES.items():
        if name not in vars(np):
            setattr(np, name, meaning)
    if getattr(np.fromstring, "__module__", "") != __name__:
        np.fromstring = _fromstring_with(np.fromstring)
    import yaml

    from minicaffe.formats.param_str import read_yaml

    if getattr(yaml.load, "__module__", "") != __name__:
        original = yaml.load

        def load(stream: Any, Loader: Any = None) -> Any:
            """yaml.load with an optional Loader."""
            if Loader is not None:
                return original(stream, Loader)
            return read_yaml(stream if isinstance(stream, str) else stream.read())

        yaml.load = load


def _fromstring_with(original: Any) -> Any:
    """np.fromstring, whose binary mode NumPy 2.3 removed."""

    def fromstring(string: Any, dtype: Any = float, count: int = -1, *, sep: str = "", **more: Any) -> Any:
        """The numbers that bytes hold, or with sep those that are written in a text."""
        if sep:
            return original(string, dtype, count, sep=sep, **more)
        return np.frombuffer(string.encode("latin-1") if isinstance(string, str) else string, dtype, count).copy()

    return fromstring
