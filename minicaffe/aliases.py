"""Modules under a second name: minicaffe.NAME as documented, wherever the module is; and caffe.NAME, as in pycaffe."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import Error

PUBLIC = {
    "arrays": "formats.arrays",
    "average_precision": "detection.evaluation",
    "classifier": "pycaffe.classifier",
    "comparison": "porting.comparison",
    "coord_map": "pycaffe.coord_map",
    "cut": "porting.cut",
    "detect": "detection.detect",
    "detect_ssd": "detection.families",
    "detector": "pycaffe.detector",
    "draw": "tracing.draw",
    "dump": "porting.dump",
    "explanations": "tracing.explanations",
    "images": "data.images",
    "inputs": "detection.inputs",
    "install_caffe_command": "cli.install_caffe_command",
    "io": "pycaffe.io",
    "merge_bn": "porting.merge_bn",
    "mpi": "scaling.mpi",
    "net_spec": "pycaffe.net_spec",
    "onnx_export": "porting.onnx",
    "onnx_import": "porting.onnx_import",
    "parse_log": "training.solver_log",
    "prototxt": "formats.prototxt",
    "rescue": "porting.rescue",
    "retarget": "porting.retarget",
    "roidb": "data.roidb",
    "script": "pycaffe.script",
    "settings": "data.settings",
    "shard": "data.shard",
    "share": "data.shard",
    "summary": "tracing.summary",
    "tracer": "tracing.tracer",
    "weights": "formats.weights",
}
"""minicaffe.NAME, as in the documents and pycaffe's scripts, and the module's real name."""


class AliasFinder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """An importer of modules under another name that makes no second copy of their classes.

    real: alias -> module's name, or None.
    """

    def __init__(self, real: Callable[[str], str | None]) -> None:
        self.real = real
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        real = self.real(fullname)
        spec = _spec_of(real) if real else None
        return ModuleSpec(fullname, self, is_package=spec.submodule_search_locations is not None) if spec else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        real = self.real(spec.name)
        assert real is not None
        module = importlib.import_module(real)
        self._specs[spec.name] = module.__spec__  # before exec_module, importlib overwrites it with the alias's spec
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module, which has run already, its own spec back."""
        assert module.__spec__ is not None
        module.__spec__ = self._specs.pop(module.__spec__.name)

    def get_source(self, fullname: str) -> str | None:
        """Return the source for `python -m`, which runs it under the name __main__."""
        real = self.real(fullname)
        spec = importlib.util.find_spec(real) if real else None
        loader = spec.loader if spec else None
        return loader.get_source(spec.name) if spec and isinstance(loader, importlib.abc.InspectLoader) else None


def _spec_of(name: str) -> ModuleSpec | None:
    """Return the spec of a module without importing its packages; importlib.util.find_spec would import them.

    A finder runs under a lock that all threads share. An import there may wait for a module that another thread is importing,
    while that thread waits for the lock.
    """
    spec, path, at = None, None, ""
    for part in (_public(name) or name).split("."):
        at = f"{at}.{part}".lstrip(".")
        spec = getattr(sys.modules.get(at), "__spec__", None) or PathFinder.find_spec(at, path)
        if spec is None:
            return None
        path = spec.submodule_search_locations or []
    return spec


def serve_public_names() -> None:
    """Let `import minicaffe.settings` import minicaffe.data.settings, and so on for PUBLIC."""
    sys.meta_path.append(AliasFinder(_public))


def _public(name: str) -> str | None:
    package, _, rest = name.partition(".")
    head, dot, below = rest.partition(".")
    return f"minicaffe.{PUBLIC[head]}{dot}{below}" if package == "minicaffe" and head in PUBLIC else None


PYCAFFE = {"caffe._caffe": "minicaffe.pycaffe"}
"""Modules of pycaffe that have another name here."""
_PACKAGE = os.path.dirname(os.path.abspath(__file__))
# realpath: in a checkout, the folders are links
_ROOTS = [os.path.realpath(os.path.join(_PACKAGE, name)) for name in ("", "layers", "proto", "cuda")]
allowed_folders: dict[str, str] = {}
"""The folder of each package or module by name. The folder need not be on sys.path."""


def is_own(spec: ModuleSpec) -> bool:
    """Return True if the module is one of minicaffe's, under whatever name."""
    places = [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.origin and spec.has_location else ())]
    real = [Path(os.path.realpath(place)) for place in places]
    return isinstance(spec.loader, AliasFinder) or any(path.is_relative_to(root) for path in real for root in _ROOTS)


class _CaffeFinder(AliasFinder):
    """A finder of caffe.x: minicaffe's x, else the user's in a folder `caffe` on sys.path.

    Below caffe.x, except proto, the user's modules go first: pycaffe has none there, and a fork's caffe.layers.proposal is not
    minicaffe.layers.proposal.
    """

    def __init__(self) -> None:
        super().__init__(_caffe)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package, *below = fullname.split(".")
        if package != "caffe":
            return None
        ours = super().find_spec(fullname, path, target)
        if ours and (len(below) < 2 or below[0] == "proto"):
            return ours
        folders = [folder for name, folder in allowed_folders.items() if name == "caffe"] + sys.path
        theirs = PathFinder.find_spec(fullname, [os.path.join(folder, "caffe", *below[:-1]) for folder in folders])
        if theirs is None or is_own(theirs):
            return ours
        return ours if ours and theirs.loader is None else theirs  # a module takes precedence over a folder without __init__.py


def _caffe(name: str) -> str | None:
    """Return the module that caffe or caffe.x stands for: minicaffe or minicaffe.x."""
    package, dot, rest = name.partition(".")
    return PYCAFFE.get(name, f"minicaffe{dot}{rest}") if package == "caffe" else None


def serve_as_caffe() -> None:
    """Make `import caffe`, `import caffe.draw` and `from caffe.proto import caffe_pb2` import minicaffe's modules.

    This also works if another Caffe is on sys.path. Raises Error if that one is already imported.
    """
    loaded, minicaffe = sys.modules.get("caffe"), sys.modules[__package__]
    if loaded is not None and loaded is not minicaffe:
        raise Error(f"another caffe is already imported, from {getattr(loaded, '__file__', 'somewhere')}")
    if not any(isinstance(finder, _CaffeFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _CaffeFinder())
    importlib.import_module("google.protobuf.text_format")  # old protobuf imported it, and scripts rely on that
