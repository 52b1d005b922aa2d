"""Python: a layer written in Python, named by python_param.module and .layer. Source: Caffe's python_layer.hpp.

    the four modules of py-faster-rcnn and py-R-FCN  ->  the built-in layers
    a class given to minicaffe.register              ->  that class
    a module given to minicaffe.allow_module         ->  imported, and the class taken from it

An allowed module may lie in a folder that is not on sys.path (the command line's working directory). What else lies in the
folder is not found: a numpy.py never takes the place of the library, and a helper beside the module must be allowed too.

Nothing else is imported: a prototxt is data, and loading one runs no code that the caller did not name. A script that
`minicaffe script` runs has allowed ANY module: one that its sys.path has goes before a built-in layer, which is what is left
where that module cannot be imported (it may be Python 2, or need compiled code).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from minicaffe.errors import LayerError
from minicaffe.formats.source import LayerSource
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

from .anchor_target import AnchorTarget
from .proposal import Proposal
from .proposal_target import ProposalTarget
from .roi_data import RoIData

STAND_INS: dict[tuple[str, str], type[Layer]] = {
    ("rpn.proposal_layer", "ProposalLayer"): Proposal,
    ("rpn.anchor_target_layer", "AnchorTargetLayer"): AnchorTarget,
    ("rpn.proposal_target_layer", "ProposalTargetLayer"): ProposalTarget,
    ("roi_data_layer.layer", "RoIDataLayer"): RoIData,
}
"""The Python layers of py-faster-rcnn and py-R-FCN that are built in."""

ANY = "*"
"""In place of a module's name: every module that sys.path reaches."""

_allowed: set[str] = set()


class _Folders(MetaPathFinder):
    """Finds the allowed modules that lie in folders: a module or a package by its name, and nothing else."""

    def __init__(self) -> None:
        self.folders: dict[str, str] = {}

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        folder = self.folders.get(fullname)
        found = None if folder is None else PathFinder.find_spec(fullname, [folder])
        is_module = found is not None and found.loader is not None  # a folder without __init__.py goes after what is installed
        return found if is_module else PathFinder.find_spec(fullname, path) or found if folder else None

    def hint(self, missing: str | None) -> str:
        """Of a module that is missing: how to allow it, where it lies in one of the folders."""
        name = (missing or "").partition(".")[0]
        for folder in self.folders.values():
            if name and name not in self.folders and PathFinder.find_spec(name, [folder]):
                return f"; it lies in {folder}: --allow-module {name} lets it be imported too"
        return ""


_folders = _Folders()


class Python(Layer):
    """A class of yours, derived from minicaffe.Layer: setup, reshape, forward, backward, with param_str, phase and blobs.

    bottom, top: what the class takes. Only the catalogue's entry: a net's layer is of the class that layer_class finds.
    """

    type = "Python"
    param_block = ("python_param",)


def allow_module(name: str, folder: str | os.PathLike[str] | None = None) -> None:
    """Let `type: "Python"` layers import the module called name: its code runs when a net that uses it is built.

    folder: where its file or package lies, if that need not be on sys.path. Of a.b the package a is looked for there, with all
    that is in it; no other module in the folder can be imported by that.
    """
    _allowed.add(name)
    if folder is not None:
        _folders.folders[name.partition(".")[0]] = os.path.abspath(folder)
        if _folders not in sys.meta_path:
            sys.meta_path.insert(0, _folders)  # before PathFinder, which would find the name on sys.path first


def layer_class(
    param: caffe_pb2.LayerParameter, registered: Mapping[str, type[Layer]], source: LayerSource | None
) -> type[Layer]:
    """The class of a Python layer: a module the caller allowed, else a stand-in, else a registered class of that name.

    Raises LayerError, which says how to allow or register it.
    """
    module, name = param.python_param.module, param.python_param.layer
    if module in _allowed:
        return _imported(module, name, param, source)
    found = STAND_INS.get((module, name)) or registered.get(f"{module}.{name}") or registered.get(name)
    if ANY in _allowed and _exists(module):
        return _of_any_module(param, found, source)
    if found is None:
        raise _error(
            param,
            source,
            f'the layer "{name}" of the Python module "{module}" is not built in, and loading a prototxt runs no code;'
            f' call minicaffe.allow_module("{module}") to let it be imported, or minicaffe.register("{name}", YourLayer)',
            "python_param.module",
        )
    return found


def _exists(module: str) -> bool:
    """Whether sys.path has the module, and its packages can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, SyntaxError, ValueError):
        return False


def _of_any_module(param: caffe_pb2.LayerParameter, found: type[Layer] | None, source: LayerSource | None) -> type[Layer]:
    """The class of a module that sys.path has; where it cannot be had, the one found otherwise, with a warning."""
    module, name = param.python_param.module, param.python_param.layer
    try:
        return _imported(module, name, param, source)
    except (LayerError, SyntaxError) as error:
        if found is None:
            raise
        warnings.warn(f"{error}; minicaffe's own {found.__name__} takes its place", stacklevel=4)
        return found


def _imported(module: str, name: str, param: caffe_pb2.LayerParameter, source: LayerSource | None) -> type[Layer]:
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        text = f'cannot import the Python module "{module}": {error}{_folders.hint(error.name)}'
        raise _error(param, source, text, "python_param.module") from error
    if not (isinstance(found, type) and issubclass(found, Layer)):
        what = "has no" if found is None else "has no layer class"
        text = f'the Python module "{module}" {what} "{name}"; a layer is a class derived from minicaffe.Layer'
        raise _error(param, source, text, "python_param.layer")
    return found


def _error(param: caffe_pb2.LayerParameter, source: LayerSource | None, message: str, field: str) -> LayerError:
    return Layer(param, source=source).error(message, field)
