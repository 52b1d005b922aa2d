"""The walk through A's layers: each top is compared with B's up to the first that differs, then known causes are tried."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from minicaffe import rng
from minicaffe.blob import Array, Arrays
from minicaffe.data.settings import DetectionSettings
from minicaffe.detection.inputs import fill_inputs, put_array
from minicaffe.detection.random_weights import make_up_weights
from minicaffe.errors import Error, WeightsError
from minicaffe.formats.arrays import read_npz
from minicaffe.formats.prototxt import NetFile
from minicaffe.formats.weights import WeightsFile, no_name_fits, read_weights
from minicaffe.hooks import Hook
from minicaffe.layer import Layer
from minicaffe.layers.data.input import Input
from minicaffe.layers.shape.split import Split
from minicaffe.mode import TEST, Phase
from minicaffe.net import Net
from minicaffe.parameters import weight_layers
from minicaffe.porting.graph import graph_of
from minicaffe.porting.suggestions import suggested_names

from .causes import direct_causes, variants
from .result import MOST_CAUSES, Comparison, Difference, Tolerance
from .sides import Name, Names, run_onnx
from .trial import Segment, Variant, parameter_variants

FOLLOWS = "it reads a blob that differs already"
LONGEST = 8
"""Layers since the last compared blob, at most, that are searched for a cause."""

Source = str | os.PathLike[str] | NetFile | Net
Other = Source | Mapping[str, ArrayLike]
Weights = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@rng.aside()
def compare(  # noqa: PLR0913 - public, by keyword
    a: Source,
    b: Other,
    *,
    weights_a: Weights = (),
    weights_b: Weights = (),
    inputs: Mapping[str, ArrayLike] | None = None,
    names: Names | None = None,
    rtol: float = 1e-3,
    atol: float | None = None,
    seed: int = 0,
    go_on: bool = False,
    phase: Phase = TEST,
    level: int = 0,
    stages: Sequence[str] = (),
    fork: str = "",
) -> Comparison:
    """Compare two nets layer by layer: find the first difference, and its cause.

    Parameters
    ----------
    a : str or path or NetFile or Net
        Net A: a prototxt or a Net.
    b : str or path or NetFile or Net or mapping of str to array_like
        B: a net like A, an .npz or a dict of blobs, or an .onnx model.
        A net read from a prototxt without weights gets A's.
    weights_a, weights_b : str or path or sequence of these, optional
        Weights files of the nets.
    inputs : mapping of str to array_like, optional
        A's inputs by name. Default: B's arrays of these names, else seeded random values.
    names : mapping of str to str or Name, optional
        B's names for A's layers and blobs, as from sides.read_map.
    rtol : float, default 1e-3
        Blobs agree where ``|a - b| <= atol + rtol |a|``.
    atol : float, optional
        Default: rtol / 10 of the largest ``|a|`` of the blob.
    seed : int, default 0
        The seed of random values.
    go_on : bool, default False
        Continue after the first difference. A net B then continues from A's values.
    phase : Phase, default TEST
        The phase of nets that are read from prototxts.
    level : int, default 0
        The level of nets that are read from prototxts.
    stages : sequence of str, optional
        The stages of nets that are read from prototxts.
    fork : str, optional
        The fork of nets that are read from prototxts.

    Returns
    -------
    Comparison
        The blobs that agree, and the differences with their causes. print shows it.

    Raises
    ------
    Error
        A file cannot be read, or a net cannot run.

    Notes
    -----
    Causes are tested: the layer is recomputed as another framework might compute it.
    A cause is named if this gives B's values.
    """
    state = (phase, level, list(stages))
    net = _net(a, state, seed, None, fork)
    result = Comparison(str(net.file), _title(b), Tolerance(rtol, atol))
    for file in _files(weights_a):
        net.copy_from(file)
    if not isinstance(a, Net) and not _files(weights_a) and (note := make_up_weights(net, net.params, seed)):
        result.notes.append(note)
    pairs = {key: Name(name) if isinstance(name, str) else name for key, name in (names or {}).items()}
    arrays = _arrays(b)
    result.notes += _fill(net, inputs or {}, arrays, pairs, seed)
    walk = Walk(net, result, go_on, pairs)
    walk.run_a(seed)
    if _is_file(b, ".onnx"):
        theirs = {name: pairs.get(name, Name(name)).name for name in net.inputs}
        arrays = run_onnx(b, {theirs[name]: array for name, array in walk.inputs.items()})
        for name in net.inputs:
            # A layer changed the input in place, and B has the first value.
            if not isinstance(net.layers[walk.graph.last[name][0]], Input):
                arrays.pop(theirs[name], None)
    if arrays is not None:
        walk.beside_arrays(arrays)
        return result
    assert not isinstance(b, Mapping)
    other = _net(b, state, seed, net.settings, net.fork)
    result.notes += [note for file in _files(weights_b) for note in load_fitting(other, file)]
    walk.beside_net(other, bool(_files(weights_b)) or isinstance(b, Net), seed)
    return result


def _net(
    source: Source, state: tuple[Phase, int, Sequence[str]], seed: int, settings: DetectionSettings | None, fork: str
) -> Net:
    if isinstance(source, Net):
        return source
    rng.set_random_seed(seed)
    return Net(source, *state, settings=settings, fork=fork)


def _files(weights: Weights) -> list[str | os.PathLike[str]]:
    return [weights] if isinstance(weights, str | os.PathLike) else list(weights)


def load_fitting(net: Net, path: str | os.PathLike[str]) -> list[str]:
    """Load the layers of a file whose blobs fit. Return a note on the others.

    So a net whose maps have wrong sizes is still compared, up to the layer that shows it. Raises WeightsError if the file
    shares no layer name with the net.
    """
    file = read_weights(path)
    if net.params and not any(stored.name in net.params for stored in file.layers if stored.blobs):
        raise no_name_fits(path, net.file, suggested_names(net, file))
    left = []
    for stored in file.layers:
        try:
            net.copy_from(WeightsFile(file.path, [stored]))
        except WeightsError:
            left.append(stored.name)
    return [f"{path} does not fit {net.file} in {', '.join(left)}"] if left else []


def _title(b: Other) -> str:
    return str(b.file) if isinstance(b, Net | NetFile) else f"{len(b)} arrays" if isinstance(b, Mapping) else str(b)


def _is_file(b: Other, suffix: str) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(b, str | os.PathLike) and Path(b).suffix == suffix


def _arrays(b: Other) -> Arrays | None:
    if isinstance(b, Mapping):
        return {name: np.asarray(array) for name, array in b.items()}
    return read_npz(b) if _is_file(b, ".npz") else None


def _fill(net: Net, inputs: Mapping[str, ArrayLike], arrays: Arrays | None, names: Mapping[str, Name], seed: int) -> list[str]:
    """Fill A's inputs with the given arrays, else B's, else seeded values. Return notes on the last two."""
    unknown = [name for name in inputs if name not in net.inputs]
    if unknown:
        raise Error(f'"{unknown[0]}" is not an input of A; its inputs are {", ".join(net.inputs) or "none"}')
    notes = fill_inputs(net, {}, seed=seed) if not set(net.inputs) <= set(inputs) else []
    taken = []
    for name in net.inputs:
        theirs = names.get(name, Name(name))
        if name in inputs:
            put_array(net, name, np.asarray(inputs[name]))
        elif arrays is not None and theirs.name in arrays:
            put_array(net, name, theirs.ours(arrays[theirs.name]))
            taken.append(name)
    made_up = [note for note in notes if not any(note.startswith(f"input {name} ") for name in [*inputs, *taken])]
    return [*made_up, *(f"input {name}: B's {names.get(name, Name(name)).name}" for name in taken)]


def _numbered(layers: Iterable[Layer]) -> list[tuple[str, int]]:
    """Return each layer's name, and the number of earlier layers with this name."""
    before = Counter[str]()
    found = []
    for layer in layers:
        found.append((layer.name, before[layer.name]))
        before[layer.name] += 1
    return found


class Walk:
    """A, run once with every layer's tops kept, and its comparison with B."""

    def __init__(self, net: Net, result: Comparison, go_on: bool, names: Mapping[str, Name]) -> None:
        self.net, self.result, self.go_on, self.names = net, result, go_on, names
        self.inputs: Arrays = {name: net.blobs[name].data.copy() for name in net.inputs}  # a layer may change them in place
        self.kept: list[list[Array]] = [[] for _ in net.layers]
        self.compared: set[int] = set()
        self.differed: set[int] = set()
        self.graph = graph_of(net.nodes)

    def run_a(self, seed: int) -> None:
        """Run A and keep every layer's tops."""

        def keep(i: int) -> None:
            self.kept[i] = [blob.read_data().copy() for blob in self.net.nodes[i].tops]

        _run(self.net, keep, seed)

    # With a net.

    def beside_net(self, other: Net, has_weights: bool, seed: int) -> None:
        """Run B on A's inputs, and compare its tops as they are computed."""
        if not has_weights:
            self._copy_weights(other)
        self._copy_inputs(other, seed)
        mine = {key: i for i, key in enumerate(_numbered(self.net.layers))}
        mine |= {(self.names[name].name, n): i for (name, n), i in mine.items() if name in self.names}
        theirs = _numbered(other.layers)

        def look(j: int) -> None:
            layer = other.layers[j]
            i = mine.get(theirs[j])
            if i is None or isinstance(layer, Split) or self._done():
                return
            for t, (blob, array) in enumerate(zip(other.nodes[j].tops, self.kept[i])):
                name = self.net.nodes[i].top_names[t]
                if not self.look(i, t, name, blob.read_data(), layer) and self.go_on and blob.shape == array.shape:
                    # Go on from A's values, so that each later difference has its own cause.
                    blob.data[...] = array

        _run(other, look, seed)
        self._unmatched()

    def _copy_weights(self, other: Net) -> None:
        """Copy A's weights to the layers of B with the same names and shapes."""
        copied = []
        targets = weight_layers(other.layers)
        for name, layer in weight_layers(self.net.layers).items():
            theirs = targets[name].blobs if name in targets else []
            if [blob.shape for blob in theirs] == [blob.shape for blob in layer.blobs]:
                for blob, source in zip(theirs, layer.blobs):
                    blob.data[...] = source.read_data()
                copied.append(name)
        filled = [name for name in targets if name not in copied]
        if other.params:
            also = f", and weights from its fillers in {', '.join(filled)}" if filled else ""
            self.result.notes.append(f"B has A's weights in {len(copied)} layers{also}")

    def _copy_inputs(self, other: Net, seed: int) -> None:
        mine = {self.names.get(name, Name(name)).name: name for name in self.net.inputs}
        if len(other.inputs) == len(mine) == 1:
            mine = {other.inputs[0]: self.net.inputs[0]}
        lacking = [name for name in other.inputs if name not in mine]
        if lacking:
            notes = fill_inputs(other, {}, seed=seed)
            self.result.notes += [f"B's {note}" for note in notes if any(note.startswith(f"input {name} ") for name in lacking)]
        for theirs, name in mine.items():
            if theirs in other.inputs:
                put_array(other, theirs, self.inputs[name])

    # With arrays.

    def beside_arrays(self, arrays: Arrays) -> None:
        """Compare A's tops with B's arrays, in A's order."""
        for i, layer in enumerate(self.net.layers):
            if isinstance(layer, Split):
                continue
            for t, top in enumerate(self.net.nodes[i].top_names):
                name = self._name(i, t, top, arrays)
                if name is None or self._done():
                    continue
                if name.name not in arrays:
                    raise Error(f"the map pairs A's {top} with B's \"{name.name}\", which {self.result.b} lacks")
                self.look(i, t, top, name.ours(arrays[name.name]), None)
        self._unmatched()

    def _name(self, i: int, t: int, top: str, arrays: Arrays) -> Name | None:
        """Return B's name for a top: mapped by layer or blob, else the layer's name if no blob has it, else the blob's.

        Under a blob's name, only the blob's last value is compared.
        """
        layer = self.net.layers[i].name
        last = self.graph.last
        is_last = last[top][0] == i
        if t == 0 and layer in self.names and (layer not in last or last[layer][0] == i):
            return self.names[layer]
        if top in self.names:
            return self.names[top] if is_last else None
        if t == 0 and layer in arrays and layer not in last:
            return Name(layer)
        return Name(top) if is_last and top in arrays else None

    # Both.

    def look(self, i: int, t: int, top: str, theirs: Array, other: Layer | None) -> bool:
        """Compare one top; return whether it agrees."""
        ours = self.kept[i][t]
        theirs = _reshaped(ours, theirs)
        self.compared.add(i)
        layer = self.net.layers[i]
        if self.result.tolerance.agree(ours, theirs):
            with np.errstate(invalid="ignore"):
                largest = np.nan_to_num(np.abs(ours.astype(np.float64) - theirs)).max(initial=0.0)
            self.result.agreed.append((layer.name, top, float(largest)))
            return True
        segment = self._segment(i)
        follows = not self.differed.isdisjoint(self.graph.makers(i))
        self.differed.add(i)
        uncompared = [self.net.layers[n].name for n in segment[:-1]]
        # A net B got A's values, so a layer after a difference differs for its own reason.
        causes, at = ([FOLLOWS], i) if follows and other is None else self._causes(segment, top, theirs, other)
        found = _difference(self.net.layers[at], top, ours, theirs, self.result.tolerance)
        self.result.differences.append(replace(found, causes=causes, uncompared=uncompared))
        return False

    def _segment(self, i: int) -> list[int]:
        """Return, in order, the indices of i and of the layers that it depends on through blobs that were not compared."""
        needed, found = set(self.graph.makers(i)), [i]
        for n in range(i - 1, -1, -1):
            is_split = isinstance(self.net.layers[n], Split)  # searched through but not listed: a Split causes no difference
            if n in needed and (is_split or n not in self.compared):
                needed.update(self.graph.makers(n))
                if self.graph.makers(n) and not is_split:
                    found.append(n)
        return found[::-1]

    def _causes(self, indices: list[int], top: str, theirs: Array, other: Layer | None) -> tuple[list[str], int]:
        """Return the causes that give B's values, and the index of the layer with the cause (the last one if there is none)."""
        last, tolerance = indices[-1], self.result.tolerance
        which = self.net.nodes[last].top_names.index(top)
        causes = list(direct_causes(self.kept[last][which], theirs, tolerance))
        causes += [
            f"it is the top of {self.net.layers[n].name}: B stored it before later layers changed it in place"
            for n in indices[:-1]
            if top in self.net.nodes[n].top_names
            and tolerance.agree(self.kept[n][self.net.nodes[n].top_names.index(top)], theirs)
        ]
        if causes or len(indices) > LONGEST or not self.net.nodes[last].bottom_names:  # an input has nothing to recompute
            return causes[:MOST_CAUSES], last
        layers, given = self._cut(indices)
        segment = Segment(layers, given, which, self.net.phase, self.net.dtype)
        for at in reversed(range(len(indices))):  # the last layer is the likeliest
            for variant in self._variants(indices[at], other if at == len(indices) - 1 else None):
                made = segment.run(at, variant.change)
                if made is not None and tolerance.agree(_reshaped(theirs, made), theirs):
                    causes.append(variant.cause)
                if len(causes) == MOST_CAUSES:
                    break
            if causes:
                return causes, indices[at]
        return [], last

    def _cut(self, indices: list[int]) -> tuple[list[Layer], Arrays]:
        """Return the layers of a segment, and the values that they read from outside it. Splits are outside."""
        made: set[str] = set()
        given: Arrays = {}
        layers = [self.net.layers[i] for i in indices]
        for i, layer in zip(indices, layers):
            for name, value in zip(layer.param.bottom, self.graph.reads[i]):
                if value is not None and name not in made and name not in given:
                    given[name] = self.kept[value[0]][value[1]]
            made.update(layer.param.top)
        return layers, given

    def _variants(self, i: int, other: Layer | None) -> Iterator[Variant]:
        layer = self.net.layers[i]
        reads_input = any(self._origin(name) in self.net.inputs for name in layer.param.bottom)
        yield from variants(layer, reads_input)
        if other is not None:
            yield from parameter_variants(layer, other)

    def _origin(self, name: str) -> str:
        """Return the blob that a Split copies to this top; else the name itself."""
        made_by = self.net.layers[self.graph.last[name][0]]
        return made_by.param.bottom[0] if isinstance(made_by, Split) else name

    def _done(self) -> bool:
        return bool(self.result.differences) and not self.go_on

    def _unmatched(self) -> None:
        """Note the layers and the outputs of A that were not compared."""
        if self._done() or not self.compared:
            return
        net, result = self.net, self.result
        result.unmatched = [x.name for i, x in enumerate(net.layers) if i not in self.compared and not isinstance(x, Split)]
        seen = {(layer, top) for layer, top, _ in result.agreed}
        differing = {difference.top for difference in result.differences}
        for name in net.outputs:
            layer = net.layers[self.graph.last[name][0]]
            if not isinstance(layer, Input) and (layer.name, name) not in seen and name not in differing:
                result.missing.append(name)


def _run(net: Net, hook: Hook, seed: int) -> None:
    rng.set_random_seed(seed)
    net.after_forward(hook)
    try:
        net.forward()
    finally:
        net.remove_hook(hook)


def _reshaped(like: Array, array: Array) -> Array:
    """Return array in like's shape if they differ only by axes of length 1, or if array is flat."""
    if array.shape == like.shape or array.size != like.size:
        return array
    bare = [tuple(n for n in x.shape if n != 1) for x in (like, array)]
    flat = like.shape[:1] == array.shape[:1] and array.ndim <= 2
    return array.reshape(like.shape) if bare[0] == bare[1] or flat else array


def _difference(layer: Layer, top: str, a: Array, b: Array, tolerance: Tolerance) -> Difference:
    place = str(layer.source.at()) if layer.source else ""
    found = Difference(layer.name, layer.type, top, place, a.shape, b.shape)
    if a.shape != b.shape or not a.size:
        return found
    beyond = tolerance.beyond(a, b)
    with np.errstate(invalid="ignore"):
        size = np.where(beyond, np.nan_to_num(np.abs(a.astype(np.float64) - b), nan=np.inf), -1.0)
    at = tuple(int(n) for n in np.unravel_index(int(size.argmax()), a.shape))
    return replace(found, largest=float(size[at]), at=at, a=float(a[at]), b=float(b[at]), fraction=float(beyond.mean()))
