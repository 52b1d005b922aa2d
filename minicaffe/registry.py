"""Layer types by name, and what each tool knows of them. Your classes and packages can add to them.

    from minicaffe.registry import explains, exports, layer, torch_form

    @layer("Mine")                          # type: "Mine" in a prototxt
    class Mine(minicaffe.Layer): ...

    @explains(Mine)                         # minicaffe.explain: case, index -> an Explanation
    @explains_gradient(Mine)                # the same of backward
    @explains_weight(Mine)                  # the same of a weight's gradient
    @exports(Mine)                          # minicaffe.export_onnx: graph, layer, bottoms, shapes of tops -> names of tops
    @torch_form(Mine)                       # minicaffe.torch.to_torch: layer, bottoms, tops -> a Module or a function

A package lists modules (or classes in them) that do so in the entry point group "minicaffe.layers". They are imported to find
an unknown type or entry, or to list all of them: never by `import minicaffe`, and never for a prototxt whose types are known.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping
from typing import Any, Generic, TypeVar

from .errors import Error
from .layer import Layer
from .proto import caffe_pb2

GROUP = "minicaffe.layers"
"""The entry point group of packages with layers."""

Kind = type[Layer]
Name = TypeVar("Name", bound=Hashable)
Entry = TypeVar("Entry", bound=Callable[..., Any])
Decorated = TypeVar("Decorated", bound=Callable[..., Any])
DecoratedLayer = TypeVar("DecoratedLayer", bound=Kind)


def load(place: str) -> Kind:
    """Return the class at a place "module:Class". A layer uses this to reach a class of layers/forks, which nothing imports."""
    module, _, name = place.partition(":")
    kind: Kind = getattr(importlib.import_module(module), name)
    return kind


class Kinds(MutableMapping[Name, Kind]):
    """Layer classes by name.

    A class given as the text "module:Class" is imported when it is first asked for: a net needs ten of the catalogue's hundred
    files.
    """

    def __init__(self, kinds: Mapping[Name, Kind | str] | None = None) -> None:
        self._kinds: dict[Name, Kind | str] = dict(kinds or {})

    def __getitem__(self, name: Name) -> Kind:
        kind = self._kinds[name]
        if isinstance(kind, str):
            kind = self._kinds[name] = load(kind)
        return kind

    def __setitem__(self, name: Name, kind: Kind) -> None:
        self._kinds[name] = kind

    def __delitem__(self, name: Name) -> None:
        del self._kinds[name]

    def __iter__(self) -> Iterator[Name]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)

    def __contains__(self, name: object) -> bool:
        return name in self._kinds

    def add(self, kinds: Kinds[Name]) -> None:
        """Add all of these, without importing them."""
        self._kinds |= kinds._kinds


types: Kinds[str] = Kinds()
"""Every layer type known so far, by name: the built-in ones of layers/__init__.py, and registered ones."""
registered: dict[str, Kind] = {}
"""The registered ones, which are also Python layers of that name."""
stand_ins: Kinds[tuple[str, str]] = Kinds()
"""The built-in layers that replace Python layers, by python_param's module and layer."""

_loaded: set[str] = set()
_scanned: list[str] = []
"""sys.path when entry points were last read."""


def register(name: str, layer: Kind) -> None:
    """Let `type: "name"`, or a Python layer called name, mean layer, a subclass of Layer (pycaffe's protocol or ours)."""
    types[name] = layer
    registered[name] = layer


def layer(name: str) -> Callable[[DecoratedLayer], DecoratedLayer]:
    """Return a decorator that registers the class under this name."""

    def decorate(kind: DecoratedLayer) -> DecoratedLayer:
        register(name, kind)
        return kind

    return decorate


def find(name: str) -> Kind | None:
    """Return the class of a type, from an installed package if necessary; None if it is unknown."""
    if name not in types:
        load_packages()
    return types.get(name)


def class_of(param: caffe_pb2.LayerParameter) -> Kind:
    """Return the class of a prototxt's layer, which holds the facts of its type; Layer if the type is unknown.

    Imports no code but minicaffe's: a Python layer that is neither built in nor registered has the class Python.
    """
    if param.type == "Python":
        module, name = param.python_param.module, param.python_param.layer
        found = stand_ins.get((module, name)) or registered.get(f"{module}.{name}") or registered.get(name)
        if found is not None:
            return found
    return types.get(param.type, Layer)


def is_built_in(kind: Kind) -> bool:
    """Return whether a class is part of minicaffe."""
    return kind.__module__.startswith("minicaffe.layers.")


def load_packages() -> None:
    """Import the entry points of installed packages, once each. One that fails gives a warning."""
    if _scanned == sys.path:
        return
    _scanned[:] = sys.path  # folders added since then may contain further packages
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP):
        if entry.value in _loaded:
            continue
        _loaded.add(entry.value)  # before the import, which may look up types itself
        try:
            entry.load()
        except Exception as error:
            package = entry.dist.name if entry.dist else "a package"
            message = f'the layers of {package} (entry point "{entry.name}" of {GROUP}) cannot be imported: {error!r}'
            warnings.warn(message, stacklevel=2)


class Table(Generic[Entry]):
    """A tool's knowledge of layer types: an entry per class. The table is the decorator that adds one.

    An entry is for exactly that class, because a subclass may compute anything. With subclasses=True it is also for
    subclasses without their own entry; the nearest base's is used.
    """

    def __init__(self, does: str, room: str) -> None:
        """Begin an empty table.

        does: the tool's name in errors. room: the package whose import adds the entries of the built-in types.
        """
        self.does, self.room = does, room
        self._entries: dict[Kind, Entry] = {}
        self._of_subclasses: dict[Kind, Entry] = {}

    def __call__(self, *kinds: Kind, subclasses: bool = False) -> Callable[[Decorated], Decorated]:
        """Add the decorated function as the entry of these classes. Your entry replaces a built-in one."""
        for kind in kinds:
            if not (isinstance(kind, type) and issubclass(kind, Layer)):
                raise Error(f"{self.does}: {kind!r} is not a layer class, one derived from minicaffe.Layer")

        def decorate(function: Decorated) -> Decorated:
            built_in = getattr(function, "__module__", "").startswith(f"{self.room}.")
            for kind in kinds:
                # A built-in registers at first use, and must not replace an entry of the user.
                if not (built_in and kind in self._entries):
                    self._entries[kind] = function  # type: ignore[assignment]
                    if subclasses:
                        self._of_subclasses[kind] = function  # type: ignore[assignment]
            return function

        return decorate

    def get(self, kind: Kind) -> Entry | None:
        """Return the entry of a class, from an installed package if necessary; None without one."""
        found = self._get(kind)
        if found is None:
            load_packages()
            found = self._get(kind)
        return found

    def _get(self, kind: Kind) -> Entry | None:
        self._fill()
        bases = (self._of_subclasses[base] for base in kind.__mro__[1:] if base in self._of_subclasses)
        return self._entries.get(kind) or next(bases, None)

    def __contains__(self, kind: Kind) -> bool:
        return self.get(kind) is not None

    def __iter__(self) -> Iterator[Kind]:
        """Iterate over the classes with an entry, including those of packages."""
        self._fill()
        load_packages()
        return iter(list(self._entries))

    def names(self) -> list[str]:
        """Return the names of the types with an entry, sorted."""
        kinds = set(self)
        return sorted(name for name, kind in types.items() if kind in kinds)

    def _fill(self) -> None:
        importlib.import_module(self.room)  # repeated calls only look in sys.modules


explains: Table[Callable[..., Any]] = Table("explain", "minicaffe.tracing.explanations")
"""(case, index) -> Explanation of an element of a top."""
explains_gradient: Table[Callable[..., Any]] = Table("explain's backward", "minicaffe.tracing.explanations")
"""(case, index) -> Explanation of the gradient in an element of a bottom."""
explains_weight: Table[Callable[..., Any]] = Table("explain's weights", "minicaffe.tracing.explanations")
"""(case, index) -> Explanation of the gradient in an element of learnable blob number case.number."""
exports: Table[Callable[..., Any]] = Table("the ONNX export", "minicaffe.porting.onnx")
"""(graph, layer, bottoms, shapes of the tops) -> the names of the tops' tensors."""
torch_form: Table[Callable[..., Any]] = Table("minicaffe.torch", "minicaffe.torch")
"""(layer, bottoms, tops) -> a torch Module, or a function of tensors."""


def linear_block(layer: caffe_pb2.LayerParameter) -> str:
    """Return the block with the num_output of a layer that multiplies by weights; "" for any other."""
    kind = class_of(layer)
    return kind.param_block[0] if kind.linear else ""
