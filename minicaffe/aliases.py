"""Modules under a second name: users import minicaffe.NAME as documented, wherever the module is."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PUBLIC = {
    "arrays": "formats.arrays",
    "average_precision": "detection.average_precision",
    "classifier": "pycaffe.classifier",
    "comparison": "porting.comparison",
    "coord_map": "pycaffe.coord_map",
    "cut": "porting.cut",
    "detect": "detection.detect",
    "detect_ssd": "detection.detect_ssd",
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
    "parse_log": "training.parse_log",
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
"""minicaffe.NAME, as in the documents and pycaffe's scripts, and the module's place."""


class AliasFinder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports a module under another name without a second copy of its classes. real: alias -> module's name, or None."""

    def __init__(self, real: Callable[[str], str | None]) -> None:
        self.real = real
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        real, spec = self.real(fullname), None
        with suppress(ModuleNotFoundError):  # nor is there the package that would have it
            spec = importlib.util.find_spec(real) if real else None
        return ModuleSpec(fullname, self, is_package=spec.submodule_search_locations is not None) if spec else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        real = self.real(spec.name)
        assert real is not None
        module = importlib.import_module(real)
        self._specs[spec.name] = module.__spec__  # importlib replaces it by the alias's before exec_module
        return module

    def exec_module(self, module: ModuleType) -> None:
        """The module has run already; give it back its own spec."""
        assert module.__spec__ is not None
        module.__spec__ = self._specs.pop(module.__spec__.name)

    def get_source(self, fullname: str) -> str | None:
        """For `python -m`, which runs the source under the name __main__."""
        real = self.real(fullname)
        spec = importlib.util.find_spec(real) if real else None
        loader = spec.loader if spec else None
        return loader.get_source(spec.name) if spec and isinstance(loader, importlib.abc.InspectLoader) else None


def serve_public_names() -> None:
    """Let `import minicaffe.settings` import minicaffe.data.settings, and so on for PUBLIC."""
    sys.meta_path.append(AliasFinder(_public))


def _public(name: str) -> str | None:
    package, _, rest = name.partition(".")
    head, dot, below = rest.partition(".")
    return f"minicaffe.{PUBLIC[head]}{dot}{below}" if package == "minicaffe" and head in PUBLIC else None
