"""Names that newer NumPy and PyYAML dropped, restored for old scripts in the process of `minicaffe script`."""

from __future__ import annotations

from typing import Any

import numpy as np

NUMPY_NAMES: dict[str, type] = {
    "bool": bool, "int": int, "float": float, "complex": complex, "object": object, "str": str, "long": int, "unicode": str,
}  # fmt: skip
"""np.float and the like: aliases of Python's types, removed in NumPy 1.24."""


def restore_old_names() -> None:
    """Restore np.float and the like, and yaml.load(text) without a Loader; it reads only plain data and tuples."""
    for name, kind in NUMPY_NAMES.items():
        if name not in vars(np):
            setattr(np, name, kind)
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
