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
from minicaffe.data.images import load_image
from minicaffe.detection.detector import Detector
from minicaffe.errors import Error, SolverError, on_one_line, os_errors_as
from minicaffe.files import unlinked
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.parameters import weights_of
from minicaffe.training.epochs import roidb_of
from minicaffe.training.record import NetTest, Update
from minicaffe.training.solver import SGDSolver
from minicaffe.training.trained_detector import FileName, put_trained_weights, trained_detector

from .film_frames import (
    HEAD,
    MOST_BOXES,
    THRESHOLD,
    Batch,
    Filters,
    Frame,
    Head,
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
        self._last: Frame  # the last frame written
        self._before = -1  # the iteration of the frame before it
        self._show: Show | None = None
        with self._aside():
            if not solver.exchange.rank:
                self._show = self._batch() if net is None else self._detector(net, images)
        solver.record.on_update(self._on_update)
        solver.record.on_test(self._on_test)

    def __enter__(self) -> Film:
        if self.solver.exchange.rank:
            return self
        with os_errors_as(Error, f"{self.folder}: a film cannot be written here"):
            self.folder.mkdir(parents=True, exist_ok=True)
        now, old = self.solver.iter, frame_files(self.folder)
        before, after = [at for at in old if at < now], [at for at in old if at >= now]
        head = Head(self.solver.net.name, self._show.photos if self._show else [], self.solver.record.scores)
        if before and _without_pictures(read_head(self.folder)) != _without_pictures(head):
            raise Error(f"{self.folder / HEAD}: a film of another net or other photos: give the same, or another folder")
        if now and after:
            self._take(read_frame(old[after[0]]), now)
        write_head(self.folder, head)
        self._recording, self._before = True, max(before, default=-1)
        self._write(self.solver.lr)
        for at in after:
            if at > now:
                old[at].unlink()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        ended = kind is None or issubclass(kind, SolverError)  # SolverError: the loss is not finite, but the weights are
        record = self.solver.record
        if self._recording and ended and record.iterations and record.iterations[-1] > self._last.iteration:
            self._write_next(record.rates[-1])
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

    # The contents of frames.

    def _detector(self, net: FileName | Detector, images: Sequence[FileName]) -> Photos:
        classes = self._classes
        detector = trained_detector(self.solver, net, classes=classes, threshold=THRESHOLD, max_detections=MOST_BOXES)
        return Photos(detector, [(os.path.basename(os.fspath(file)), load_image(file)) for file in images] or self._of_roidb())

    def _of_roidb(self) -> list[tuple[str, NDArray[np.uint8]]]:
        entries = [entry for entry in roidb_of(self.solver.net) if not entry["flipped"]][:MOST_PHOTOS]
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
        """Record an old frame's facts up to iteration `until`, unless the record knows them."""
        record = self.solver.record
        known = record.iterations[-1] if record.iterations else -1
        for i, at in enumerate(frame.iterations):
            if known < at <= until:
                values = {name: math.nan if (value := column[i]) is None else value for name, column in frame.losses.items()}
                record.add(Update(at, math.nan, frame.lr, values))
        for test in frame.tests:
            if known < test.iteration <= until:
                record.add_test(test)

    def _on_update(self, update: Update) -> None:
        if self._recording and update.iteration % self.every == 0:
            self._write_next(update.lr)

    def _on_test(self, test: NetTest) -> None:
        if self._recording and self._last.iteration == test.iteration:  # a test follows the frame of its iteration
            self._last = replace(self._last, tests=self._tests(test.iteration))
            write_frame(self.folder, self._last)

    def _write_next(self, lr: float) -> None:
        self._before = self._last.iteration
        self._write(lr)

    def _write(self, lr: float) -> None:
        """Write a frame of the facts since the frame before."""
        solver, show = self.solver, self._show
        with self._aside():
            if show:
                put_trained_weights(solver, show.net)
            seen = show.look() if show else []
        iterations, values = solver.record.between(self._before, solver.iter)
        losses = {name: list(map(_rounded, column)) for name, column in values.items()} if iterations else {}
        self._last = Frame(solver.iter, lr, iterations, losses, filters(solver.net), seen, self._tests(solver.iter))
        write_frame(self.folder, self._last)

    def _tests(self, until: int) -> list[NetTest]:
        """Return the tests since the frame before."""
        found = self.solver.record.tests_between(self._before, until)
        return [replace(test, outputs={name: _rounded(value) for name, value in test.outputs.items()}) for test in found]


def _rounded(value: float | None) -> float | None:
    """Return value with 6 digits; None if it is not finite."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


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
