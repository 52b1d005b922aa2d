"""Python: a layer written in Python, named by python_param.module and .layer. Source: Caffe's python_layer.hpp.

    the four modules of py-faster-rcnn and py-R-FCN, and some of other repositories  ->  the built-in layers
    a class given to minicaffe.register              ->  that class
    a module given to minicaffe.allow_module         ->  imported, and the class taken from it

An allowed module may lie in a folder that is not on sys.path (the command line's working directory). Other modules in the
folder are not found: a numpy.py never replaces the library, and a helper next to the module must be allowed too.

Nothing else is imported: a prototxt is data, and loading one runs no code that the caller did not name. A script that
`minicaffe script` runs has allowed ANY module: a module on its sys.path precedes a built-in layer. The built-in layer is used
if that module cannot be imported (it may be Python 2, or need compiled code).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from minicaffe.aliases import allowed_folders, is_own, serve_as_caffe
from minicaffe.errors import LayerError, ways
from minicaffe.formats.source import LayerSource
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2
from minicaffe.registry import Kinds

DETECTNET, CLUSTERING = "caffe.layers.detectnet", "minicaffe.layers.forks.detectnet.clustering"

STAND_INS: Kinds[tuple[str, str]] = Kinds(
    {
        ("rpn.proposal_layer", "ProposalLayer"): "minicaffe.layers.proposal.proposal:Proposal",
        ("rpn.anchor_target_layer", "AnchorTargetLayer"): "minicaffe.layers.proposal.anchor_target:AnchorTarget",
        ("rpn.proposal_target_layer", "ProposalTargetLayer"): "minicaffe.layers.proposal.proposal_target:ProposalTarget",
        ("roi_data_layer.layer", "RoIDataLayer"): "minicaffe.layers.proposal.roi_data:RoIData",
        ("rpn.as_rois", "As_roisLayer"): "minicaffe.layers.proposal.pyramid_rois:PyramidRois",
        ("layers.text_proposal_layer", "ProposalLayer"): "minicaffe.layers.forks.ctpn:TextProposal",
        ("pylayer.proposal_layer", "ProposalLayer"): "minicaffe.layers.forks.mnc:MNCProposal",
        ("pylayer.mask_layer", "MaskLayer"): "minicaffe.layers.forks.mnc:MNCMask",
        ("pylayer.stage_bridge_layer", "StageBridgeLayer"): "minicaffe.layers.forks.mnc:MNCStageBridge",
        ("SSH.layers.proposal_layer", "ProposalLayer"): "minicaffe.layers.forks.ssh:SSHProposal",
        ("SSH.layers.anchor_target_layer", "AnchorTargetLayer"): "minicaffe.layers.forks.ssh:SSHAnchorTarget",
        (f"{DETECTNET}.clustering", "ClusterGroundtruth"): f"{CLUSTERING}:ClusterGroundtruth",
        (f"{DETECTNET}.clustering", "ClusterDetections"): f"{CLUSTERING}:ClusterDetections",
        (f"{DETECTNET}.mean_ap", "ScoreDetections"): f"{CLUSTERING}:ScoreDetections",
        (f"{DETECTNET}.mean_ap", "mAP"): f"{CLUSTERING}:MeanAP",
        ("spatial_dropout", "SpatialDropoutLayer"): "minicaffe.layers.neuron.dropout:SpatialDropout",
    }
)
"""The Python layers that are built in, most of them py-faster-rcnn's and py-R-FCN's."""

OTHER_FORMS: Kinds[tuple[str, str]] = Kinds(
    {("rpn.proposal_layer", "ProposalLayer"): "minicaffe.layers.proposal.pyramid_rois:PyramidProposal"}
)
"""Layers of another repository with the same name and another number of bottoms."""

ORIGINS = {
    "SSH": "SSH (github.com/mahyarnajibi/SSH)",
    "pylayer": "MNC (github.com/daijifeng001/MNC)",
    "python_layers": "pulkitag's Caffe (github.com/pulkitag/caffe)",
    "roi_data_layer": "py-faster-rcnn (github.com/rbgirshick/py-faster-rcnn) or a fork of it",
    "rpn": "py-faster-rcnn (github.com/rbgirshick/py-faster-rcnn) or a fork of it",
    "rpn.heatmap_layer": "bottom-up-attention (github.com/peteanderson80/bottom-up-attention)",
    "rpn.proposal_layer.ProposalLayer2": "PVANet (github.com/sanghoon/pva-faster-rcnn)",
    "rpn.proposal_target_layer_mrcnn": "FPN (github.com/unsky/FPN)",
    "rpn.as_rois_mrcnn": "FPN (github.com/unsky/FPN)",
}
"""The repositories of other Python layers, by a package, module or class. The longest matching name counts."""

ANY = "*"
"""A name that stands for every module that sys.path reaches."""

_allowed: set[str] = set()


class _Folders(MetaPathFinder):
    """A finder of allowed modules in folders: it finds a module or a package by its name, and nothing else."""

    folders = allowed_folders

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        folder = None if fullname == "caffe" else self.folders.get(fullname)  # caffe is minicaffe
        found = None if folder is None else PathFinder.find_spec(fullname, [folder])
        if folder is None or (found is not None and found.loader is not None):
            return found
        # Installed packages precede a folder without __init__.py. Folders of minicaffe's checkout do not.
        installed = PathFinder.find_spec(fullname, path)
        return found if installed is None or (found and is_own(installed)) else installed

    def hint(self, missing: str | None) -> str:
        """Return advice for a missing module: how to allow it, if it is in one of the folders."""
        name = (missing or "").partition(".")[0]
        if name == "caffe" and "caffe" not in sys.modules:
            return "; minicaffe.serve_as_caffe() before it lets `import caffe` mean minicaffe"
        for folder in self.folders.values():
            if name and name not in self.folders and PathFinder.find_spec(name, [folder]):
                way = ways(f"--allow-module {name}") or f"minicaffe.allow_module({name!r}, {folder!r})"
                return f"; it lies in {folder}: {way} lets it be imported too"
        return ""


_folders = _Folders()


class Python(Layer):
    """Your class, derived from minicaffe.Layer: setup, reshape, forward, backward, with param_str, phase and blobs.

    bottom, top: what the class takes. Only the catalogue's entry: a net's layer is of the class that layer_class finds.
    """

    type = "Python"
    param_block = ("python_param",)


def allow_module(name: str, folder: str | os.PathLike[str] | None = None) -> None:
    """Let `type: "Python"` layers import a module.

    Its code runs when a net that uses it is built.

    Parameters
    ----------
    name : str
        The module's name.
    folder : str or path, optional
        The folder of its file or package, if this is not on sys.path.
        For a.b the package a is looked up there, with all its content. No other module in the folder can be imported.

    Notes
    -----
    A module caffe.b is yours, and makes `import caffe` mean minicaffe: serve_as_caffe.
    """
    package = name.partition(".")[0]
    if package == "caffe":
        serve_as_caffe()
    _allowed.add(name)
    if folder is not None:
        _folders.folders[package] = os.path.abspath(folder)
        if _folders not in sys.meta_path:
            sys.meta_path.insert(0, _folders)  # before PathFinder, which would find the name on sys.path


@contextmanager
def modules_kept() -> Iterator[None]:
    """Withdraw, after the block, what allow_module allows in it."""
    names, folders = _allowed.copy(), allowed_folders.copy()
    try:
        yield
    finally:
        _allowed.intersection_update(names)
        allowed_folders.clear()
        allowed_folders.update(folders)


def layer_class(
    param: caffe_pb2.LayerParameter, registered: Mapping[str, type[Layer]], source: LayerSource | None
) -> type[Layer]:
    """Return the class of a Python layer: from an allowed module, else a stand-in, else a registered class of that name.

    Raises LayerError with how to allow or register it.
    """
    module, name = param.python_param.module, param.python_param.layer
    if module in _allowed:
        return _imported(module, name, param, source)
    found = _stand_in(param, source) or registered.get(f"{module}.{name}") or registered.get(name)
    if ANY in _allowed and (found is None or _exists(module)):
        return _of_any_module(param, found, source)
    if found is None:
        raise _not_built(param, source, "is not built in")
    return found


def _stand_in(param: caffe_pb2.LayerParameter, source: LayerSource | None) -> type[Layer] | None:
    """Return the built-in class for this module and layer. Raises LayerError if only the name matches a fork's layer."""
    named = param.python_param.module, param.python_param.layer
    forms = [kinds[named] for kinds in (STAND_INS, OTHER_FORMS) if named in kinds]
    fitting = [kind for kind in forms if _takes(kind.num_bottom, len(param.bottom)) and _takes(kind.num_top, len(param.top))]
    if not forms or fitting or ANY in _allowed or not (param.bottom or param.top):
        return next(iter([*fitting, *forms]), None)
    wanted = " or ".join(f"{_counted(kind.num_bottom)} bottoms and {_counted(kind.num_top)} tops" for kind in forms)
    given = f"{len(param.bottom)} and {len(param.top)}"
    raise _not_built(param, source, f"is built in for {wanted}, but this one has {given}, as a fork's may")


def _counted(count: int | tuple[int, int | None]) -> str:
    """Return a num_bottom or num_top as text."""
    return str(count) if isinstance(count, int) else f"{count[0]} or more" if count[1] is None else f"{count[0]} to {count[1]}"


def _takes(count: int | tuple[int, int | None], given: int) -> bool:
    """Return whether this num_bottom or num_top allows `given` blobs."""
    least, most = (count, count) if isinstance(count, int) else count
    return least <= given and (most is None or given <= most)


def _not_built(param: caffe_pb2.LayerParameter, source: LayerSource | None, what: str) -> LayerError:
    """Return the error for an unavailable layer: what it is, where it is from, and how to allow or register it."""
    module, name = param.python_param.module, param.python_param.layer
    words = f"{module}.{name}".split(".")
    origin = next((ORIGINS[key] for n in range(len(words), 0, -1) if (key := ".".join(words[:n])) in ORIGINS), "")
    # Many repositories have a folder of this name.
    from_ = f", perhaps from {origin}," if origin else ""
    message = (
        f'the layer "{name}" of the Python module "{module}"{from_} {what}, and loading a prototxt runs no code;'
        f" {own_module(module)} lets it be imported;"
        f' minicaffe.register("{name}", YourLayer) puts a class of yours in its place'
    )
    return _error(param, source, message, "python_param.module")


def own_module(module: str) -> str:
    """Return how to allow a module, as a sentence's subject."""
    found = ways(f"--allow-module {module}", f'minicaffe.allow_module("{module}")')
    return f"{found}," if ", or " in found else found


def _exists(module: str) -> bool:
    """Return whether the module is imported, or sys.path has it and its packages can be imported."""
    try:
        return not _is_hidden(module) and (module in sys.modules or importlib.util.find_spec(module) is not None)
    except (ImportError, SyntaxError, ValueError):
        return False


def _is_hidden(module: str) -> bool:
    """Return whether the name leads to one of minicaffe's files, as `layers.proposal` does in a folder with our layers.

    Checks a package before it is imported: importing a file under two names would duplicate each of its classes.
    """
    parts = module.split(".")
    if parts[0] == "minicaffe":
        return False
    first = len(parts) if parts[0] == "caffe" else 1  # caffe is minicaffe, but a module in it may be the user's
    for end in range(first, len(parts) + 1):
        loaded = sys.modules.get(name := ".".join(parts[:end]))
        spec = importlib.util.find_spec(name) if loaded is None else getattr(loaded, "__spec__", None)
        if spec is None or is_own(spec):
            return spec is not None
    return False


def _of_any_module(param: caffe_pb2.LayerParameter, found: type[Layer] | None, source: LayerSource | None) -> type[Layer]:
    """Return the class from a module on sys.path. If it is unavailable, return the class found otherwise, with a warning."""
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
        if _is_hidden(module):
            own = f"No module named {module!r}: the files of that name are minicaffe's own; {_other_place(module)}"
            raise ModuleNotFoundError(own, name=module)
        found = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        text = f'cannot import the Python module "{module}": {error}{_folders.hint(error.name)}'
        raise _error(param, source, text, "python_param.module") from error
    if not (isinstance(found, type) and issubclass(found, Layer)):
        what = "has no" if found is None else "has no layer class"
        text = f'the Python module "{module}" {what} "{name}"; a layer is a class derived from minicaffe.Layer'
        raise _error(param, source, text, "python_param.layer")
    return found


def _other_place(module: str) -> str:
    """Return where to move a module whose name leads to one of minicaffe's files."""
    package, _, below = module.partition(".")
    file = module.replace(".", "/")
    if package == "caffe" and "." not in below:
        return f'move the class from {file}/__init__.py to {file}/custom.py and write module: "{module}.custom"'
    put = f"put {file}.py below the first folder of sys.path"
    if below and package != "caffe":
        put += f", with an empty {package}/__init__.py"
    return ", or ".join([put, *filter(None, [ways(f'minicaffe.allow_module("{module}", FOLDER) finds it in FOLDER')])])


def _error(param: caffe_pb2.LayerParameter, source: LayerSource | None, message: str, field: str) -> LayerError:
    return Layer(param, source=source).error(message, field)
