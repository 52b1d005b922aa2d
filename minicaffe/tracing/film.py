"""Film: records a training as a frame in a folder every N iterations, and makes one HTML file of them.

with minicaffe.Film(solver, "film", every=50, net="test.prototxt", images=["photo.jpg"]) as film:
    solver.solve()
film.write()
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from minicaffe import rng
from minicaffe.blob import Arrays
from minicaffe.data.images import load_image
from minicaffe.detection.detector import Detector
from minicaffe.errors import Error, SolverError, on_one_line, os_errors_as
from minicaffe.files import unlinked
from minicaffe.layers.proposal.roi_data import RoIData
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.parameters import weights_of
from minicaffe.training.solver import Progress, SGDSolver
from minicaffe.training.trained_detector import FileName, put_trained_weights, trained_detector
from minicaffe.training.validation import COCO, VOC, Validated

from .film_frames import (
    HEAD,
    MOST_BOXES,
    THRESHOLD,
    Batch,
    Filters,
    Frame,
    Head,
    NetTest,
    Photos,
    Show,
    frame_files,
    read_frame,
    read_head,
    write_frame,
    write_head,
)
from .representations import sheet_png
from .trace import colours, on_scale
from .trace_page import filled, script_json, write_page

EVERY = 100
"""The default iterations from frame to frame."""
PAGE = "film.html"
LOSS = "the loss"
"""Of all outputs and ranks, among the outputs' names."""
MOST_PHOTOS = 3
"""The most images of the roidb."""
MOST_FILTERS = 256


class Film:
    """A context manager that records a training as frames in a folder.

    It writes a frame at both ends of its block, and every `every` iterations of the training.
    A frame shows the losses so far, the results of the solver's tests, and the learning rate.
    It also shows the filters of the first layer that has some, and the net's results.

    Parameters
    ----------
    solver : SGDSolver
        The solver of the training.
    folder : str or path
        The folder of the frames. A film in it is continued, and frames after solver.iter are replaced.
    every : int, default 100
        Iterations from frame to frame.
    net : str or path or Detector, optional
        The detector that is trained, as a test prototxt or a Detector. It is shown `images`.
        By default, a classifier with a test net is shown that net's first batch; any other net is shown nothing.
    images : sequence of str or path, optional
        Image files for `net`. Default: the roidb's first images.
    classes : sequence of str, optional
        Names by class index, the background first.

    Attributes
    ----------
    solver : SGDSolver
        The solver of the training.
    folder : Path
        The folder of the frames.
    every : int
        Iterations from frame to frame.
    note : str
        The reason why only losses and filters are shown, or "".

    Raises
    ------
    Error
        The net is no detector or has other layers, or the folder holds a film of other photos.

    Notes
    -----
    Make the film after set_roidb and restore.
    If the solver has a `Validation`, make the film after it: the frames show its average precision.
    It does not change the training: it has its own net, data and random numbers.
    On several ranks, rank 0 writes.
    """

    def __init__(
        self,
        solver: SGDSolver,
        folder: FileName,
        every: int = EVERY,
        *,
        net: FileName | Detector | None = None,
        images: Sequence[FileName] = (),
        classes: Sequence[str] | None = None,
    ) -> None:
        if every < 1:
            raise Error(f"every must be > 0, got {every}")
        self.solver, self.folder, self.every = solver, Path(folder), every
        self.note = ""
        self._classes = classes
        self._recording = False
        self._lr = math.nan
        self._iterations: list[int] = []
        self._losses: dict[str, list[float | None]] = {}
        self._tests: list[NetTest] = []
        self._last: Frame  # the last frame written
        self._outputs = _single_outputs(solver.net)
        self._show: Show | None = None
        with self._aside():
            if not solver.exchange.rank:
                self._show = self._batch() if net is None else self._detector(net, images)
        solver.on_progress(self._progress)
        solver.on_test(self._on_test)
        if solver.validation:
            solver.validation.on_validated(self._on_validated)

    def __enter__(self) -> Film:
        if self.solver.exchange.rank:
            return self
        with os_errors_as(Error, f"{self.folder}: a film cannot be written here"):
            self.folder.mkdir(parents=True, exist_ok=True)
        now, old = self.solver.iter, frame_files(self.folder)
        before, after = [at for at in old if at < now], [at for at in old if at >= now]
        head = Head(self.solver.net.name, self._show.photos if self._show else [], self._accuracies())
        if before and _without_pictures(read_head(self.folder)) != _without_pictures(head):
            raise Error(f"{self.folder / HEAD}: a film of another net or other photos: give the same, or another folder")
        if now and after:
            self._take(read_frame(old[after[0]]), now)
        write_head(self.folder, head)
        self._lr, self._recording = self.solver.lr, True
        self._write()
        for at in after:
            if at > now:
                old[at].unlink()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        ended = kind is None or issubclass(kind, SolverError)  # SolverError: the loss is not finite, but the weights are
        if self._recording and ended and self._iterations:
            self._write()
        self._recording = False

    def write(self, path: FileName | None = None) -> Path:
        """Write the frames as one HTML page.

        Parameters
        ----------
        path : str or path, optional
            The page. Default: film.html in the folder.

        Returns
        -------
        Path
            The page's path.
        """
        target = Path(path) if path else unlinked(self.folder / PAGE)
        if not self.solver.exchange.rank:
            write_film(self.folder, target)
        return target

    def _accuracies(self) -> list[str]:
        nets = [self.solver.net, *self.solver.test_nets]
        made = [(net, node) for net in nets for node in net.nodes if node.layer.type.endswith("Accuracy")]
        names = [name for net, node in made for name in node.top_names if name in _single_outputs(net)]
        return list(dict.fromkeys([*names, *((VOC, COCO) if self.solver.validation else ())]))

    # The contents of frames.

    def _detector(self, net: FileName | Detector, images: Sequence[FileName]) -> Photos:
        classes = self._classes
        detector = trained_detector(self.solver, net, classes=classes, threshold=THRESHOLD, max_detections=MOST_BOXES)
        return Photos(detector, [(os.path.basename(os.fspath(file)), load_image(file)) for file in images] or self._of_roidb())

    def _of_roidb(self) -> list[tuple[str, NDArray[np.uint8]]]:
        reader = next((layer for layer in self.solver.net.layers if isinstance(layer, RoIData)), None)
        entries = [entry for entry in reader.roidb if not entry["flipped"]][:MOST_PHOTOS] if reader else []
        if not entries:
            raise Error("a film with a test net needs photos, as there is no roidb: give images (train: --film-image)")
        given = [(i, entry["image"]) for i, entry in enumerate(entries)]
        return [(f"image {i}", x) if isinstance(x, np.ndarray) else (os.path.basename(x), load_image(x)) for i, x in given]

    def _batch(self) -> Batch | None:
        """Return a view of the first test net's first batch, or None if that net is not a classifier."""
        self.note = "no test net of a detector is given, and the solver has none of a classifier: losses and filters alone"
        for net in self.solver.test_nets[:1]:
            try:
                shown = Batch(Net(net.param, TEST, settings=net.settings, fork=net.fork), self._classes)
            except Error as error:
                self.note = str(error)
            else:
                self.note = ""
                return shown
        return None

    # The frames.

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """In the block, let rank 0 work without using the training's random numbers."""
        with nullcontext() if self.solver.exchange.rank else self.solver.exchange.alone(), rng.aside():
            yield

    def _take(self, frame: Frame, until: int) -> None:
        """Keep the losses of an old frame up to iteration `until`, and the tests that are not repeated.

        The tests of iteration `until` are repeated, but not the validation.
        """
        kept = [i for i, at in enumerate(frame.iterations) if at <= until]
        self._iterations += [frame.iterations[i] for i in kept]
        for name, values in frame.losses.items():
            self._losses.setdefault(name, []).extend(values[i] for i in kept)
        validated = len(self.solver.test_nets)
        self._tests += [test for test in frame.tests if test.iteration < until + (test.net == validated)]

    def _progress(self, progress: Progress) -> None:
        if not self._recording:
            return
        net, self._lr = self.solver.net, progress.lr
        parts = {name: float(net.blobs[name].read_data().sum()) for name in self._outputs}
        self._iterations.append(progress.iteration)
        for name, value in {LOSS: progress.last_loss, **parts}.items():
            self._losses.setdefault(name, []).append(_rounded(value))
        if progress.iteration % self.every == 0:
            self._write()

    def _on_test(self, index: int, means: Arrays) -> None:
        if not self._recording:
            return
        outputs = {name: _rounded(float(means[name].sum())) for name in _single_outputs(self.solver.test_nets[index])}
        self._add(NetTest(self.solver.iter, index, outputs))

    def _on_validated(self, done: Validated) -> None:
        if self._recording:
            outputs = {name: _rounded(value) for name, value in done.numbers.items()}
            self._add(NetTest(done.iteration, len(self.solver.test_nets), outputs))

    def _add(self, test: NetTest) -> None:
        self._tests.append(test)
        if self._last.iteration == self.solver.iter:  # a test follows the frame of its iteration
            self._last, self._tests = replace(self._last, tests=self._last.tests + self._tests), []
            write_frame(self.folder, self._last)

    def _write(self) -> None:
        solver, show = self.solver, self._show
        with self._aside():
            if show:
                put_trained_weights(solver, show.net)
            seen = show.look() if show else []
        found = filters(solver.net)
        self._last = Frame(solver.iter, self._lr, self._iterations, self._losses, found, seen, self._tests)
        write_frame(self.folder, self._last)
        self._iterations, self._losses, self._tests = [], {}, []


def _single_outputs(net: Net) -> list[str]:
    """Return the outputs that are one number."""
    return [name for name in net.outputs if net.blobs[name].count == 1]


def _rounded(value: float) -> float | None:
    """Return value with 6 digits; None if it is not finite."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _without_pictures(head: Head) -> Head:
    """Return the head without its pictures, which other versions of Pillow encode differently, and its accuracies."""
    return Head(head.net, [replace(photo, picture="") for photo in head.photos])


def filters(net: Net) -> Filters | None:
    """Return the filters of the first layer that has some larger than 1x1; in colours if it has 3 inputs."""
    arrays = ((name, arrays[0]) for name, arrays in weights_of(net).items())
    name, weight = next(((name, x) for name, x in arrays if x.ndim == 4 and x.shape[2] * x.shape[3] > 1), ("", np.zeros(0)))
    if not weight.size:
        return None
    size = "x".join(map(str, weight.shape[2:]))
    finite = np.nan_to_num(weight.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    largest = float(np.abs(finite).max())
    if weight.shape[1] == 3:
        shown = (finite[:MOST_FILTERS, ::-1].transpose(0, 2, 3, 1) * (127.5 / (largest or 1)) + 127.5).round().astype(np.uint8)
        text = f"{len(weight)} filters of {size}; grey is 0"
    else:
        pixels, low, high = on_scale(finite.reshape(-1, *weight.shape[2:])[:MOST_FILTERS])
        shown = colours(pixels, low, high)
        text = f"{len(shown)} of {weight.shape[0] * weight.shape[1]} filters of {size}; black is 0"
    return Filters(f"{on_one_line(name)}: {text}, the largest weight {largest:.3g}", sheet_png(shown))


def write_film(folder: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Write the page of the frames in folder. Raises Error for a folder without a film and for broken files."""
    files = frame_files(folder)
    if not files:
        raise Error(f"{os.fspath(folder)}: no frames of `minicaffe train --film` in this folder")
    head = read_head(Path(folder))
    data = {**asdict(head), "frames": [asdict(read_frame(file)) for file in files.values()]}
    title = escape(on_one_line(head.net or os.fspath(folder)))
    write_page(filled("film.html", {"title": title, "film": script_json(data)}), path)
