"""The test net of a detector that is being trained: its file, its settings, and the current weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minicaffe.data.settings import DetectionSettings
from minicaffe.detection.detector import Detector
from minicaffe.detection.families import family_of
from minicaffe.detection.family import SSD_MEANS
from minicaffe.detection.ssd import ssd_layer
from minicaffe.errors import Error
from minicaffe.formats.prototxt import read_net
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.parameters import put_weights, weights_of

from .target_scaling import folded

if TYPE_CHECKING:
    from .solver import SGDSolver

FileName = str | PathLike[str]

USUAL = ("test.prototxt", "test_agnostic.prototxt", "faster_rcnn_test.pt", "deploy.prototxt")
"""The names of test nets that do not follow from the train net's name."""


def trained_detector(
    solver: SGDSolver,
    net: FileName | Detector,
    *,
    classes: Sequence[str] | None = None,
    threshold: float | None = None,
    max_detections: int = 100,
) -> Detector:
    """Return the detector of a test prototxt, or the given one, checked to have the layers of the trained net.

    put_trained_weights gives it weights. Raises Error for the test net of another model.
    """
    if isinstance(net, Detector):
        detector = net
    else:
        detector = _made(solver, net, classes, threshold, max_detections)
    detector.net.take_layouts((name, [x.shape for x in arrays]) for name, arrays in weights_of(solver.net).items())
    wanted = {name: [blob.shape for blob in blobs] for name, blobs in detector.net.params.items()}
    there = {name: [blob.shape for blob in blobs] for name, blobs in solver.net.params.items()}
    if wrong := [name for name, shapes in wanted.items() if there.get(name) != shapes]:
        kinds = f"has blobs {wanted[wrong[0]]}, in {solver.net.file} {there.get(wrong[0], 'there is none')}"
        raise Error(f'{detector.net.file}: not a test net of the trained one: layer "{wrong[0]}" {kinds}')
    return detector


def put_trained_weights(solver: SGDSolver, net: Net) -> None:
    """Copy the solver's current weights into a test net, with the box targets folded in as in a snapshot."""
    with folded(solver.net, solver.settings):
        put_weights(net, weights_of(solver.net))


def find_test_net(solver: SGDSolver) -> Path:
    """Return the detector's test prototxt in the folder of the solver or of the train net.

    Raises Error, with the names that were tried, if there is none.
    """
    train = Path(solver.net.file)
    folders = list(dict.fromkeys([train.parent, solver.folder]))
    names = usual_test_names(train.name)
    for path in (folder / name for name in names for folder in folders):
        if path.is_file() and path.name != train.name and input_names(path):
            return path  # SSD's test.prototxt reads a database instead
    tried = f"{', '.join(names)} in {' or '.join(map(str, folders))}"
    raise Error(f"{train}: found no test net with an input for an image ({tried}): name the test prototxt")


def usual_test_names(train: str) -> list[str]:
    """Return the names that the test net of a train net may have, the most likely first.

    train_agnostic_ohem.prototxt -> test_agnostic_ohem.prototxt, test_agnostic.prototxt, ...
    """
    plain = train.replace("_ohem", "")
    derived = [
        name.replace(part, new) for new in ("test", "deploy") for part in ("train_val", "train") for name in (train, plain)
    ]
    return list(dict.fromkeys(name for name in [*derived, *USUAL] if name != train and "train" not in name))


def input_names(path: FileName) -> list[str]:
    """Return the names of a net's inputs. Raises Error."""
    param = read_net(path, warn=False).param
    return [*param.input, *(top for layer in param.layer if layer.type == "Input" for top in layer.top)]


def _made(
    solver: SGDSolver, file: FileName, classes: Sequence[str] | None, threshold: float | None, max_detections: int
) -> Detector:
    net = solver.make_net(file, TEST, keep="outputs", settings=solver.settings, fork=solver.net.fork)
    if net.settings == DetectionSettings() and (defaults := family_of(net).test_defaults):
        net.settings = dataclasses.replace(net.settings, test=dataclasses.replace(net.settings.test, **defaults))
    means: dict[str, Any] = {}
    if ssd_layer(net):
        given = (layer.param.transform_param for layer in solver.net.layers if layer.param.HasField("transform_param"))
        if transform := next(given, None):  # an SSD needs the means and scale of its train net
            values = list(transform.mean_value) or SSD_MEANS
            means = {"means": values if len(values) > 1 else list(values) * 3, "scale_factor": transform.scale}
    return Detector(net, classes=classes, threshold=threshold, max_detections=max_detections, **means)
