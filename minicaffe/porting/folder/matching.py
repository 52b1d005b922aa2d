"""Weights and the nets that they fit, matched by the layers' names and the shapes of their blobs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from minicaffe.data.settings import DetectionSettings
from minicaffe.detection.families import family_of
from minicaffe.detection.family import SSD_MEANS, Family
from minicaffe.detection.mtcnn import stage_of
from minicaffe.detection.task import Task, task_of
from minicaffe.errors import Error, first_of
from minicaffe.formats.caffemodel import LayerWeights
from minicaffe.formats.weights import WeightsFile
from minicaffe.layers.neuron.dropout import Dropout
from minicaffe.layers.shape.split import Split
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.porting.dump import Dump
from minicaffe.registry import types

from .scan import Item, reading, reason

MOST_UNTRAINED = 3
"""Nets without weights to go on with, at most."""
TRIED = 6
"""Nets made for one file of weights, at most: those with the most of its layers' names; and without weights."""

SettingsOf = Callable[[Item], DetectionSettings | None]
"""The detection settings of a net."""


@dataclass(frozen=True)
class Pair:
    """Weights and a net.

    fitting, wanted: of the net's layers with weights; wrong: layers of other shapes, with both; lacking: the net's layers that
    the weights lack; unread: the weights' layers that the net lacks; types: of layers that the net stored with the weights has
    and this one lacks, as Sigmoid where this one has ReLU; made: the net, None where it cannot be made here, for the reason
    `problem`.
    """

    net: Item
    weights: Item
    fitting: int
    wanted: int
    wrong: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    problem: str = ""
    made: Net | None = field(default=None, repr=False)

    @property
    def fits(self) -> bool:
        """True if the file has all weights of the net, and the net computes everything that the trained one does."""
        return self.made is not None and self.fitting == self.wanted > 0 and not self.types

    @property
    def name(self) -> str:
        return f"{self.weights.path} in {self.net.path}"

    @property
    def says(self) -> str:
        text = f"{self.fitting} of {self.wanted} layers fit"
        if self.problem:
            text = f"{self.fitting} layers have the same names; the net cannot be built here: {self.problem}"
        parts = {"other shapes": self.wrong, "not in the weights": self.lacking, "not in the net": self.unread}
        for what, names in parts.items():
            if names:
                text += f"; {what}: {first_of(names, most=3)}"
        if self.types:
            text += f"; BUT the trained net has {', '.join(self.types)}, which this one lacks"
        return text


@dataclass(frozen=True)
class Runnable:
    """A net to go on with, and its weights; None for a net without any, which runs with random ones.

    task: detect only if the net proposes its own rois, else run.
    """

    net: Item
    weights: Item | None
    made: Net = field(repr=False)

    @cached_property
    def family(self) -> Family | None:
        """The family of a detector; None for another net."""
        with suppress(Error):
            return family_of(self.made)
        return None

    @cached_property
    def stage(self) -> int:
        """1, 2 or 3 for a net of an MTCNN, else 0."""
        return stage_of(self.made.param)

    @property
    def takes_means(self) -> bool:
        """True if the means of images must be given: neither settings nor the family has them."""
        if self.family is None:
            return not self.stage
        return self.family.has_fixed_size and self.family.means == SSD_MEANS

    @cached_property
    def task(self) -> Task:
        task = Task("run") if self.stage else task_of(self.made)
        return Task("run") if task.command == "detect" and "rois" in self.made.inputs else task


def pairs_of(nets: Sequence[Item], weights: Sequence[Item], settings: SettingsOf, fork: str) -> list[Pair]:
    """Return pairs of each file of weights and the nets that it may belong to, the best first."""
    found: list[Pair] = []
    made: dict[str, Net | str] = {}
    for file in weights:
        stored = {layer.name for layer in _layers(file) if any(layer.blobs)}
        shared = {net.path: len(stored & {layer.name for layer in net.content.param.layer}) for net in nets}
        near = sorted((net for net in nets if shared[net.path]), key=lambda net: -shared[net.path])[:TRIED]
        of_file = []
        for net in near:
            if net.path not in made:
                made[net.path] = _made(net, settings, fork)
            of_file.append(_pair(net, file, made[net.path], shared[net.path]))
        found += sorted(of_file, key=lambda pair: (not pair.fits, pair.made is None, -pair.fitting, len(pair.unread)))
    return found


def best_of(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the best pair for each file of weights that fits a net."""
    found: dict[str, Pair] = {}
    for pair in pairs:
        if pair.fits:
            found.setdefault(pair.weights.path, pair)
    return list(found.values())


def runnable(
    pairs: Sequence[Pair], nets: Sequence[Item], settings: SettingsOf, fork: str
) -> tuple[list[Runnable], dict[str, str]]:
    """Return the nets to go on with: for each file of weights the best net that it fits.

    If there is none: the first nets that can be made, those with results first, and why the nets before them cannot be made.
    """
    if best := [Runnable(pair.net, pair.weights, pair.made) for pair in best_of(pairs) if pair.made]:
        return _with_results_first(best), {}
    found: list[Runnable] = []
    problems: dict[str, str] = {}
    for item in nets:
        made = _made(item, settings, fork)
        if isinstance(made, str):
            problems[item.path] = made
        else:
            found.append(Runnable(item, None, made))
        if len(found) == TRIED:
            break
    return _with_results_first(found)[:MOST_UNTRAINED], problems


def _with_results_first(found: list[Runnable]) -> list[Runnable]:
    """Sort nets: those whose command gives boxes, classes or text before those that only run. An MTCNN's first net detects."""
    return sorted(found, key=lambda one: one.task.command == "run" and one.stage != 1)


def _layers(weights: Item) -> list[LayerWeights]:
    content: Dump = weights.content
    return content.layers


def _made(net: Item, settings: SettingsOf, fork: str) -> Net | str:
    """Return the net for TEST, or the reason why there is none."""
    if reads := reading(net.content):
        return f"it reads data ({', '.join(dict.fromkeys(reads))}): `minicaffe deploy` replaces its data layers by inputs"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the item's notes report what matters
            return Net(net.content, TEST, keep="outputs", settings=settings(net), strict=False, fork=fork)
    except Exception as error:  # one faulty net must not stop the report on the others
        return reason(error)


def _pair(net: Item, weights: Item, made: Net | str, shared: int) -> Pair:
    layers = {layer.name: layer for layer in _layers(weights) if any(layer.blobs)}
    if isinstance(made, str):
        return Pair(net, weights, shared, shared, problem=made)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.take_layouts(WeightsFile(weights.path, list(layers.values())).shapes())
    except Exception as error:  # as in _made
        return Pair(net, weights, shared, shared, problem=reason(error))
    wrong, lacking, fitting = [], [], 0
    for name, blobs in made.params.items():
        if name not in layers:
            lacking.append(name)
            continue
        given = [blob for blob in layers[name].blobs if blob is not None]
        if len(given) == len(blobs) and all(one.fits(blob.shape) for one, blob in zip(given, blobs, strict=True)):
            fitting += 1
            continue
        shapes = [" ".join("x".join(map(str, each.shape)) for each in some) for some in (given, blobs)]
        wrong.append(f"{name} ({shapes[0]} in the weights, {shapes[1]} in the net)")
    unread = tuple(name for name in layers if name not in made.params)
    found = (tuple(wrong), tuple(lacking), unread, _types(weights, made))
    return Pair(net, weights, fitting, len(made.params), *found, made=made)


def _types(weights: Item, net: Net) -> tuple[str, ...]:
    """Return types without weights that compute in TEST, which the net stored with the weights has and this one lacks."""
    kinds = {layer.type: types.get(layer.type) for layer in _layers(weights) if not any(layer.blobs)}
    mine = {layer.type for layer in net.layers}
    computing = (kind for kind, known in kinds.items() if known is not None and known.elementwise)
    return tuple(kind for kind in computing if kind not in mine and not issubclass(types[kind], Split | Dropout))
