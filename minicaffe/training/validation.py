"""Validation: measures a detector while it trains, keeps the best weights, and stops a training that no longer improves.

    validation = minicaffe.Validation(solver, roidb, classes, net="test.prototxt", every=500, patience=5)
    solver.solve()
    validation.best, validation.best_iteration        # the best average precision, and when

It does not change the training: it has its own net and random numbers. Its state is part of the snapshots.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import rng
from minicaffe.data.roidb import entry_pixels, image_name, prepare_roidb
from minicaffe.data.roidb_entry import Entry
from minicaffe.data.state_fields import MOST, Fields, State, number
from minicaffe.detection.detect import Detections
from minicaffe.detection.detector import Detector
from minicaffe.detection.evaluation import Report, evaluate
from minicaffe.errors import Error
from minicaffe.formats.arrays import checksum

from .epochs import epoch_of
from .signals import Action, Request
from .snapshots import best_path
from .solver_log import net_outputs
from .trained_detector import FileName, find_test_net, put_trained_weights, trained_detector

if TYPE_CHECKING:
    from .solver import SGDSolver

logger = logging.getLogger("minicaffe.solver")

THRESHOLD, MOST_BOXES = 0.01, 100
"""As for `minicaffe evaluate`: the lowest score of a detection, and the most detections of an image."""
VOC, COCO = "voc_ap", "coco_ap"
"""The names of the numbers: VOC's average precision at an IoU of 0.5, and COCO's over IoUs from 0.5 to 0.95."""


@dataclass(frozen=True)
class Validated:
    """The result of a validation.

    Attributes
    ----------
    iteration : int
        The number of updates.
    report : Report
        The results of all classes.
    is_best : bool
        True if it is better than all before.
    """

    iteration: int
    report: Report
    is_best: bool

    @property
    def numbers(self) -> dict[str, float]:
        """The mean average precisions by name: voc_ap, and coco_ap if pycocotools is installed."""
        coco = {COCO: self.report.coco["AP"]} if self.report.coco else {}
        return {VOC: self.report.mean_ap, **coco}


class Validation:
    """A validation of the trained detector, every `every` iterations and after the last one.

    The best weights are written to ``<snapshot_prefix>_best.caffemodel``, as for the test net.
    VOC's mean average precision at an IoU of 0.5 decides which are the best; if it is equal, COCO's.

    Parameters
    ----------
    solver : SGDSolver
        The solver of the training.
    roidb : sequence of dict
        The images and their boxes, as from `minicaffe.roidb.load_roidb`.
    classes : sequence of str, optional
        Names by class index, the background first. Default: the detector's names, or numbers.
    net : str or path or Detector, optional
        The test prototxt, or its Detector. Default: the test net in the folder of the solver or the train net.
    every : int, optional
        Iterations between validations. Default: an epoch, and at least as many as there are images to validate.
    patience : int, optional
        The number of validations without a better one after which the training stops. Default: it does not stop.

    Attributes
    ----------
    solver : SGDSolver
        The solver of the training.
    net : str or path or Detector
        The test prototxt, or its Detector.
    every : int
        Iterations between validations.
    patience : int or None
        The number of validations without a better one after which the training stops.
    best : float or None
        The best value so far.
    best_iteration : int
        The iteration of the best value.
    best_numbers : dict of str to float
        All numbers of the best validation.
    detector : Detector or None
        The detector that is measured; None in ranks other than 0.

    Raises
    ------
    Error
        The images have no boxes, the classes are not the net's, or the test net is of another model.

    Notes
    -----
    Make it after set_roidb, and before `restore`, which also restores its state.
    On several ranks, rank 0 validates and the others wait.
    """

    def __init__(
        self,
        solver: SGDSolver,
        roidb: Sequence[Entry],
        classes: Sequence[str] | None = None,
        *,
        net: FileName | Detector | None = None,
        every: int | None = None,
        patience: int | None = None,
    ) -> None:
        for name, value in (("every", every), ("patience", patience)):
            if value is not None and value < 1:
                raise Error(f"{name} must be > 0, got {value}")
        if not any((np.asarray(entry["gt_classes"]) > 0).any() for entry in roidb):
            images = "image to validate has" if len(roidb) == 1 else f"{len(roidb)} images to validate have"
            raise Error(f"the {images} no boxes, so there is no average precision: give annotated images")
        self.solver, self.patience = solver, patience
        epoch = epoch_of(solver)
        self.every = every or max(epoch.iterations if epoch else 0, len(roidb))
        self.best: float | None = None
        self.best_iteration = 0
        self.best_numbers: dict[str, float] = {}
        self._last = solver.iter
        self._without_better = 0
        self._images: list[Callable[[int, int], object]] = []
        self._validated: list[Callable[[Validated], object]] = []
        self._data = _fingerprint(roidb)
        self._roidb, self._classes = list(roidb), list(classes or [])
        self.net = find_test_net(solver) if net is None else net
        self.detector: Detector | None = None
        if not solver.exchange.rank:
            with solver.exchange.alone(), rng.aside():
                self.detector = self._checked()
        solver.validation = self

    def _checked(self) -> Detector:
        """Return the detector; prepare the roidb for it."""
        names = self._classes or None
        detector = trained_detector(self.solver, self.net, classes=names, threshold=THRESHOLD, max_detections=MOST_BOXES)
        count, holder, _ = detector.family.classes(detector.net)
        self._classes = self._classes or list(detector.classes or map(str, range(count)))
        if len(self._classes) != count:
            given = f"the images to validate have {len(self._classes)} classes with the background"
            raise Error(f"{given}, but {holder} of {detector.net.file} has {count}")
        if "rois" in detector.net.inputs and (lone := next((one for one in self._roidb if not _proposals(one).size), None)):
            raise Error(f"{detector.net.file} takes rois, but {image_name(lone)} has no proposals to validate with")
        self._roidb = prepare_roidb(self._roidb, count)
        return detector

    @property
    def measures_coco(self) -> bool:
        """True if pycocotools is installed."""
        return find_spec("pycocotools") is not None

    @property
    def names(self) -> list[str]:
        """The names of the numbers that it measures."""
        return [VOC, COCO] if self.measures_coco else [VOC]

    @property
    def best_file(self) -> Path:
        """The file of the best weights."""
        return best_path(self.solver.param)

    @property
    def is_over(self) -> bool:
        """True if `patience` validations in a row were not better."""
        return self.patience is not None and self._without_better >= self.patience

    def on_image(self, report: Callable[[int, int], object]) -> None:
        """Add a function that is called after each image.

        Parameters
        ----------
        report : callable
            Called with the number of images done, and of all.
        """
        self._images.append(report)

    def on_validated(self, report: Callable[[Validated], object]) -> None:
        """Add a function that is called after each validation, in rank 0.

        Parameters
        ----------
        report : callable
            Called with the Validated.
        """
        self._validated.append(report)

    def run(self, request: Request, *, last: bool = False) -> Action:
        """Validate if it is due. The solver calls this after each iteration, in all ranks.

        Parameters
        ----------
        request : callable
            The solver's request for an action. It is asked between images.
        last : bool, default False
            True after the last iteration of the training.

        Returns
        -------
        Action
            STOP if the training should stop, SNAPSHOT if one was requested meanwhile, else NONE.
        """
        solver, action = self.solver, Action.NONE
        if solver.exchange.rank:
            return action
        if solver.iter and solver.iter != self._last and (last or solver.iter % self.every == 0):
            with solver.exchange.alone(), rng.aside():
                action = self._measure(request)
        if action is not Action.STOP and self.is_over and not last:
            logger.info("Iteration %d, %d validations without a better one", solver.iter, self._without_better)
            return Action.STOP
        return action

    def state(self) -> State:
        """Return the state for a snapshot.

        Returns
        -------
        dict
            The state, as JSON.
        """
        return {
            "data": self._data,
            "last": self._last,
            "without_better": self._without_better,
            "best": self.best,
            "best_iteration": self.best_iteration,
            "best_numbers": self.best_numbers,
        }

    def restore(self, state: State | Fields) -> None:
        """Continue from a state. If it is of other images, the best value so far does not count.

        Parameters
        ----------
        state : dict
            What `state` returned.

        Raises
        ------
        ValueError
            A value is missing or wrong.
        """
        fields = Fields(state)
        if fields.text("data") != self._data:
            logger.warning("The snapshot was validated on other images: its best value does not count.")
            return
        last, without_better, at = (fields.whole(name, 0, MOST) for name in ("last", "without_better", "best_iteration"))
        best = fields.get("best")
        numbers = {name: number(value, name) for name, value in fields.inner("best_numbers").values.items()}
        self.best = None if best is None else number(best, fields.path("best"))
        self._last, self._without_better, self.best_iteration, self.best_numbers = last, without_better, at, numbers

    def _measure(self, request: Request) -> Action:
        """Validate; return an action that was requested meanwhile. A stop ends the validation without a result."""
        assert self.detector is not None
        put_trained_weights(self.solver, self.detector.net)
        action, found = Action.NONE, list[Detections]()
        for i, entry in enumerate(self._roidb, 1):
            asked = request()
            if asked is Action.STOP:
                logger.info("Validation interrupted.")
                return asked
            action = action if asked is Action.NONE else asked
            found.append(self._found(entry, self.detector))
            for report in self._images:
                report(i, len(self._roidb))
        self._record(evaluate(found, self._roidb, self._classes, coco=self.measures_coco))
        return action

    def _found(self, entry: Entry, detector: Detector) -> Detections:
        try:
            return detector(entry_pixels(entry), proposals=_proposals(entry) if "rois" in detector.net.inputs else None)
        except Error as error:
            place = f"validation after {self.solver.iter} iterations"
            raise Error(f"{place}: {image_name(entry)}: {str(error).removeprefix(f'{image_name(entry)}: ')}") from error

    def _record(self, report: Report) -> None:
        solver = self.solver
        coco = report.coco.get("AP", 0.0)
        is_best = self.best is None or (report.mean_ap, coco) > (self.best, self.best_numbers.get(COCO, 0.0))
        done = Validated(solver.iter, report, is_best)
        logger.info("Iteration %d, Testing net (#%d)", solver.iter, len(solver.test_nets))
        net_outputs("Test", done.numbers, {})
        if done.is_best:
            logger.info("Best weights written to %s", solver.save_best())
            self.best, self.best_iteration, self.best_numbers = report.mean_ap, solver.iter, done.numbers
        self._without_better = 0 if done.is_best else self._without_better + 1
        self._last = solver.iter
        for tell in self._validated:
            tell(done)


def _proposals(entry: Entry) -> NDArray[Any]:
    """Return an entry's boxes that are proposals (R, 4)."""
    found: NDArray[Any] = np.asarray(entry["boxes"]).reshape(-1, 4)[np.asarray(entry["gt_classes"]).reshape(-1) == 0]
    return found


def _fingerprint(roidb: Sequence[Entry]) -> str:
    """Return a checksum of the boxes and classes."""
    arrays = (np.asarray(entry[part], float) for entry in roidb for part in ("boxes", "gt_classes"))
    return f"{len(roidb)} images, {checksum(*arrays)}"
