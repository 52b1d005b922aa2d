"""What old scripts use of NumPy and PyYAML and newer versions dropped; put back for `minicaffe script`, in its process only."""

from __future__ import annotations

from typing import Any

import numpy as np

NUMPY_NAMES: dict[str, type] = {
    "bool": bool, "int": int, "float": float, "complex": complex, "object": object, "str": str, "long": int, "unicode": str,
}  # fmt: skip
"""np.float and its kind: other names of Python's own types, gone since NumPy 1.24."""


def restore_old_names() -> None:
    """np.float and the like; yaml.load(text) without a Loader, which reads plain data and tuples here and makes no objects."""
    for name, kind in NUMPY_NAMES.items():
        if name not in vars(np):
            setattr(np, name, kind)
    import yaml

    from minicaffe.formats.param_str import read_yaml

    if getattr(yaml.load, "__module__", "") != __name__:
        original = yaml.load

        def load(stream: Any, Loader: Any = None) -> Any:
            """yaml.load, whose Loader may be left out."""
            if Loader is not None:
                return original(stream, Loader)
            return read_yaml(stream if isinstance(stream, str) else stream.read())

        yaml.load = load
