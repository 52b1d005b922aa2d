"""Tracer: records the results of every step of every layer, through the net's hooks.

    with Tracer(net, "trace.html"):
        net.forward()

A net made inside the block, Net(file, watch=tracer.watch), is traced from its first layer's setup on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.cuda.device import current
from minicaffe.cuda.stream import Stopwatch
from minicaffe.data.drawings import class_name
from minicaffe.detection.detect import to_json
from minicaffe.errors import Error
from minicaffe.layer import Layer
from minicaffe.mode import gpu_mode
from minicaffe.net import Net

from .class_maps import ClassMap, class_map, class_scores
from .explanations.lineage import Lineage, lineage
from .tours import Tour
from .trace import BlobShot, Failure, GivenShot, LayerFacts, SampledShot, Step, Trace, add_gradients, roi_shot, shot, shows_rois
from .trace_facts import (
    MOST_DETECTIONS,
    Ran,
    TakenMemory,
    example,
    found_classes,
    found_detections,
    layer_facts,
    names_of,
    picture,
    reduced,
    seen_picture,
)
from .trace_page import page, write_page
from .trace_targets import anchor_maps, target_shot
from .units import Unit, unit

TILE_BYTES = 8 * 2**20
"""The most bytes of the pictures of all blobs."""
MOST_OF_ONE = 2**18
"""The most bytes of the pictures of one blob."""

MOST_BOXES = 50_000
"""The most boxes of an NMS that a trace keeps."""

OnStep = Callable[[Step], None]


class Tracer:
    """A context manager that traces the net in its block.

    `trace` holds the result. A second forward pass replaces the first.

    Parameters
    ----------
    net : Net, optional
        The net. Without it, make a net in the block with ``Net(file, watch=tracer.watch)``.
        That net is traced from its first layer's setup on.
    path : str or path, optional
        The page to write at the end of the block, also if a layer fails.
    backward : bool, default True
        Record backward passes.
    image : (H, W, 3) ndarray, optional
        uint8 pixels (blue, green, red) of the picture in the net's input, to show with the result.
    classes : sequence of str, optional
        The names of the classes; for a detector with the background first.
        Default: VOC's for a detector of 21 classes, COCO's for 81.
    notes : iterable of str, optional
        Lines to show on the page.
    tile_bytes : int, default 8 MiB
        The most bytes of the pictures of maps. 0: none.
    on_step : callable, optional
        Called with each Step after it.

    Attributes
    ----------
    net : Net or None
        The net.
    steps : list of Step
        The steps so far.
    steps_to_come : int or None
        The number of steps at the end of this pass. None before the first forward.
    error : Failure or None
        The layer that failed, and its error.
    notes : list of str
        Lines to show on the page.
    gradient : str
        The start of backward, in words, for the page.
    options : str
        Options of the command line, for the commands that the page shows.
    tours : list of Tour
        The tours that the page offers, from tours.load_tour.
    """

    def __init__(
        self,
        net: Net | None = None,
        path: str | os.PathLike[str] | None = None,
        *,
        backward: bool = True,
        image: NDArray[np.uint8] | None = None,
        classes: Sequence[str] | None = None,
        notes: Iterable[str] = (),
        tile_bytes: int = TILE_BYTES,
        on_step: OnStep | None = None,
    ) -> None:
        self.net, self.path, self.backward, self.image = net, path, backward, image
        self.classes, self.notes, self.gradient, self.options = classes, list(notes), "", ""
        self.on_step, self.tours = on_step, list[Tour]()
        self.steps: list[Step] = []
        self.steps_to_come: int | None = None
        self.error: Failure | None = None
        self._tile_bytes, self._passes = tile_bytes, 0
        self._ran: dict[int, Ran] = {}
        self._read: list[Array] = []
        """What a layer that works in place reads, while it runs."""
        self._making: Layer | None = None
        self._inside: tuple[str, int] | None = None
        self._start: Stopwatch | float = 0.0
        self._attached = False
        self._went_forward: set[int] = set()
        self._went_back: set[int] = set()
        self._taken, self._last = TakenMemory(), 0
        self._shots = (0, 0)
        self._trace: Trace | None = None
        self._class_maps: list[ClassMap] = []
        self._units: list[Unit] = []

    def __enter__(self) -> Tracer:
        if self.net is not None:
            self._attach(self.net)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.detach()
        if error is not None and self._inside is not None:
            way, layer = self._inside
            self.error = Failure(layer, way, str(error) or type(error).__name__)
        if self.net is not None and (error is None or self.error):
            self._trace = self._collect()
            if self.path is not None:
                self.write(self.path)

    @property
    def trace(self) -> Trace:
        """The trace: in the block up to now, after it of the whole run. Raises ValueError without a net."""
        return self._trace or self._collect()

    def trace_from(self, first: int, before: Trace) -> Trace:
        """Return `trace`, with the facts of the first layers taken from an earlier trace.

        Parameters
        ----------
        first : int
            The index of the first layer that is not taken.
        before : Trace
            The earlier trace.

        Returns
        -------
        Trace
            The trace.
        """
        return self._collect(before.layers[:first])

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as an HTML page.

        Parameters
        ----------
        path : str or path
            The page.
        """
        write_page(page(self.trace), path)

    def add_class_maps(self, layer: str) -> None:
        """Add class activation maps (Grad-CAM) of the best detections or classes. Call after forward, before backward.

        Parameters
        ----------
        layer : str
            The layer with the maps of the image.

        Raises
        ------
        Error
            The net has neither detections nor classes, or the scores do not depend on maps of this layer.
        """
        with self.paused():
            net = self._traced
            scores = class_scores(net, found_detections(net, self.image), self.classes)
            self._class_maps = [class_map(net, layer, score) for score in scores]

    def add_unit(self, layer: str, at: Sequence[int] = ()) -> None:
        """Add pictures of a unit: the pixels that raise it. Call after forward, before backward.

        Parameters
        ----------
        layer : str
            The unit's layer.
        at : sequence of int, optional
            Its channel, or its channel, row and column. By default, the greatest number is the unit.

        Raises
        ------
        Error
            There is no such unit, or the net has no input for an image.
        """
        with self.paused():
            self._units.append(unit(self._traced, layer, at))

    def layer_of(self, step: Step) -> Layer:
        """Return the layer that made a step.

        Parameters
        ----------
        step : Step
            A step of this trace.

        Returns
        -------
        Layer
            The layer.
        """
        return self._layers()[step.layer]

    def _repr_html_(self) -> str:
        from .representations import trace_html

        return trace_html(self.trace)

    def watch(self, net: Net, layer: Layer, moment: str) -> None:
        """Record a layer's setup and reshape. Pass this method to ``Net(file, watch=...)``.

        Parameters
        ----------
        net : Net
            The net so far.
        layer : Layer
            The layer.
        moment : {"created", "setup", "reshape"}
            The step just done.
        """
        if moment == "created":
            self.net, self._making = net, layer
            self._attach(net)
            self._begin("setup", len(net.layers))  # the layer joins net.layers after its reshape
        elif moment == "setup":
            self._end("setup", len(net.layers))
            self._begin("reshape", len(net.layers))
        else:
            self._making = None
            # The layer is in net.layers now.
            self._end("reshape", len(net.layers) - 1)

    def detach(self) -> None:
        """Remove the hooks."""
        if self.net is not None:
            forward = (self._before_forward, self._after_reshape, self._after_forward)
            for hook in (*forward, self._before_backward, self._after_backward):
                self.net.remove_hook(hook)
        self._attached = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing in the block.

        Yields
        ------
        None
            The block runs without the hooks.
        """
        self.detach()
        try:
            yield
        finally:
            self._attach(self._traced)

    @property
    def _traced(self) -> Net:
        if self.net is None:
            raise ValueError("a Tracer without a net has no trace")
        return self.net

    # The hooks.

    def _attach(self, net: Net) -> None:
        if self._attached:  # watch attaches at each layer
            return
        self._attached = True
        net.before_forward(self._before_forward)
        net.after_reshape(self._after_reshape)
        net.after_forward(self._after_forward)
        if self.backward:
            net.before_backward(self._before_backward)
            net.after_backward(self._after_backward)

    def _before_forward(self, i: int) -> None:
        if i in self._went_forward:  # a layer for the second time: a new pass has begun, or goes on from here
            self._forget(i)
        if not self._went_forward:
            self._taken.update(self._all_blobs())
        if not self.steps or self.steps[0].kind != "setup":
            self._add_setup()
        if not self._went_forward:
            self.steps_to_come = len(self.steps) + 2 * (len(self._traced.nodes) - i)
        node = self._traced.nodes[i]
        overwritten = any(top is bottom for top in node.tops for bottom in node.bottoms)
        self._read = [blob.read_data().copy() for blob in node.bottoms] if overwritten and self._tile_bytes else []
        self._begin("reshape", i)

    def _after_reshape(self, i: int) -> None:
        self._end("reshape", i)
        self._begin("forward", i)

    def _after_forward(self, i: int) -> None:
        ms, room, net = self._lap(), self._room(), self._traced
        layer, tops, bottoms, names = net.layers[i], net.nodes[i].tops, net.nodes[i].bottoms, net.nodes[i].top_names
        made = [blob.read_data() for blob in tops]
        blobs = [
            BlobShot(name, "top", "data", shot(array, room, of_anchors=anchor_maps(net, i, t)))
            for t, (name, array) in enumerate(zip(names, made, strict=True))
        ]
        if self._tile_bytes:
            read = self._read or [blob.read_data() for blob in bottoms]
            roi = roi_shot(layer, read[0], read[1], made[0]) if shows_rois(layer) else None
            self._ran[i] = Ran(roi, example(net, i, read), target_shot(layer, read, made), seen_picture(layer, made))
        self._went_forward.add(i)
        self._add("forward", i, ms, blobs)

    def _before_backward(self, i: int) -> None:
        if not self._traced.nodes[i].needs_backward:
            return
        if not self._went_back:
            self.steps_to_come = len(self.steps) + sum(node.needs_backward for node in self._traced.nodes[: i + 1])
        self._begin("backward", i)

    def _after_backward(self, i: int) -> None:
        net = self._traced
        if not net.nodes[i].needs_backward:
            return
        ms, room = self._lap(), self._room()
        if not self._went_back:
            self._taken.update(self._all_blobs())
        self._went_back.add(i)
        chosen = zip(net.nodes[i].bottom_names, net.nodes[i].bottoms, net.nodes[i].bottom_needs, strict=True)
        blobs = [BlobShot(name, "bottom", "diff", shot(blob.read_diff(), room)) for name, blob, needs in chosen if needs]
        ran = self._ran.get(i)
        if ran and ran.roi and net.nodes[i].bottom_needs[0]:
            add_gradients(ran.roi, net.nodes[i].tops[0].read_diff(), net.nodes[i].bottoms[0].read_diff())
        self._add("backward", i, ms, blobs)

    def _begin(self, way: str, i: int) -> None:
        self._inside = (way, i)
        self._start = Stopwatch(current()) if gpu_mode() else time.perf_counter()

    def _lap(self) -> float:
        """Return the milliseconds since _begin."""
        self._inside = None
        if isinstance(self._start, Stopwatch):
            self._start.stop()
            return self._start.milliseconds()
        return (time.perf_counter() - self._start) * 1e3

    def _end(self, kind: str, i: int) -> None:
        self._add(kind, i, self._lap(), [])

    def _add(self, kind: str, i: int, ms: float | None, blobs: list[BlobShot]) -> None:
        nodes = self._traced.nodes
        for node in (nodes[self._last], nodes[i]):  # the last one's blobs may have freed their memory since
            self._taken.update([*node.bottoms, *node.tops, *node.layer.blobs])
        self._last = i
        step = Step(kind, i, ms, self._taken.bytes, [top.shape for top in nodes[i].tops], blobs)
        self.steps.append(step)
        if self.on_step:
            self.on_step(step)

    def continue_from(self, other: Tracer, end: int) -> None:
        """Take the forward steps of the first layers from another tracer, whose net has the same first layers.

        Parameters
        ----------
        other : Tracer
            The other tracer.
        end : int
            The index of the first layer that is not taken.
        """
        self.steps += other.steps[other._place(0) : other._place(end)]
        self._ran = {i: ran for i, ran in other._ran.items() if i < end}
        self._went_forward = {i for i in other._went_forward if i < end}

    def _forget(self, i: int) -> None:
        """Begin a new forward pass at layer i: drop the old steps of this and later layers, except the net's setup."""
        del self.steps[self._place(i) :]
        self._ran = {n: ran for n, ran in self._ran.items() if n < i}
        self._went_forward = {n for n in self._went_forward if n < i}
        self._went_back.clear()
        self._class_maps, self._units = [], []
        self._passes += 1

    def _place(self, i: int) -> int:
        """Return the index among the steps at which layer i's reshape and forward stand, or would stand."""
        ran = (
            n for n, step in enumerate(self.steps) if step.kind == "backward" or (step.kind == "forward" and step.layer >= i)
        )
        place = next(ran, len(self.steps))
        if place < len(self.steps) and self.steps[place].kind == "forward":
            before = self.steps[place - 1]
            place -= place > 0 and before.kind == "reshape" and before.layer == self.steps[place].layer
        return place

    def _add_setup(self) -> None:
        """Add untimed setup steps, for a net that was made before the tracer."""
        shapes = [[top.shape for top in node.tops] for node in self._traced.nodes]
        self.steps[:0] = [Step("setup", i, None, self._taken.bytes, tops) for i, tops in enumerate(shapes)]
        self.notes.append("LayerSetUp is not timed: the net was made before the tracer")

    # The result.

    def _layers(self) -> list[Layer]:
        return [*self._traced.layers, *([self._making] if self._making else [])]

    def _all_blobs(self) -> list[Blob]:
        tops = [top for node in self._traced.nodes for top in node.tops]
        return tops + [blob for layer in self._layers() for blob in layer.blobs]

    def _room(self) -> int:
        """Return the number of bytes for one blob's pictures."""
        nodes, shots = self._shots
        if nodes != len(self._traced.nodes):
            shots = sum(len(node.tops) + len(node.layer.blobs) for node in self._traced.nodes)
            self._shots = len(self._traced.nodes), shots
        if self.backward:
            shots *= 2  # a data and a diff picture of each blob
        return min(MOST_OF_ONE, self._tile_bytes // max(shots, 1))

    def _collect(self, known: Sequence[LayerFacts] = ()) -> Trace:
        """Return the trace. known: the facts of the first layers."""
        net, room = self._traced, self._room()
        rest = list(enumerate(self._layers()))[len(known) :]
        made = [layer_facts(net, i, layer, self._ran.get(i, Ran()), i in self._went_back, room) for i, layer in rest]
        layers = [*known, *made]
        passes = [f"{self._passes + 1} forward passes ran: the last is shown"] if self._passes else []
        # Otherwise the outputs belong to no pass or to half of one.
        done = self.error is None and len(net.nodes) - 1 in self._went_forward
        return Trace(
            name=net.name,
            file=str(net.file),
            phase=str(net.phase),
            dtype=str(net.dtype),
            device=current().name if gpu_mode() else "cpu",
            weights=list(net.weights_files),
            gradient=self.gradient if self._went_back else "",
            notes=[*self.notes, *passes, *reduced(self.steps, layers)],
            layers=layers,
            steps=list(self.steps),
            error=self.error,
            picture=picture(net, self.image) or next((ran.seen for ran in self._ran.values() if ran.seen), None),
            detections=self._detections() if done else None,
            best_classes=found_classes(net, self.image, self.classes) if done else None,
            options=self.options,
            lineage=(way := self._lineage() if done else None),
            class_names=self._class_names(way, layers),
            tours=self.tours,
            class_maps=self._class_maps,
            units=self._units,
        )

    def _lineage(self) -> Lineage | None:
        if self.image is None or not self._tile_bytes:
            return None
        try:
            way = lineage(self._traced, self.image.shape[:2], MOST_DETECTIONS)
        except Error:
            return None
        steps = [nms for nms in (way.first, way.last) if nms is not None]
        fits = all(len(nms.boxes) <= MOST_BOXES and np.isfinite(nms.rule).all() for nms in steps)
        return way if fits else None

    def _class_names(self, way: Lineage | None, layers: Sequence[LayerFacts]) -> list[str]:
        """Return the names of the classes that the lineage and the true boxes have."""
        counts = [layer.targets.classes for layer in layers if isinstance(layer.targets, SampledShot | GivenShot)]
        if way:
            counts.append(int(way.found.groups.max(initial=0)) + 1)
        names = names_of(self._traced, self.classes) if counts else None
        return [class_name(k, names) for k in range(max(counts, default=0))]

    def _detections(self) -> list[dict[str, Any]] | None:
        found = found_detections(self._traced, self.image)
        return None if found is None else to_json(found, names_of(self._traced, self.classes))
