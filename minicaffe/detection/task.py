"""The task of a net: the command that gives its results, and the classes that it tells apart."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod

from minicaffe.errors import Error, in_brackets, ways
from minicaffe.net import Net

from .class_names import default_names, read_labels, with_background
from .classification import check_names, scores_blob, softmax_outputs
from .families import family_of
from .family import Classes
from .flow import flow_blob, pair_inputs
from .inputs import image_inputs
from .instances import SCORES, has_instances
from .pose import map_blobs
from .reading import Ctpn, has_steps, text_blob
from .segmentation import MOST_CLASSES, is_classes, score_blob


@dataclass(frozen=True)
class Task:
    """The task of a net.

    command: detect, classify, segment, pose, read or flow; run for any other net. classes: None for a net without classes, and
    for one that does not show their number.
    """

    command: str
    classes: Classes | None = None


def task_of(net: Net) -> Task:
    """Return the task of a net, as its inputs and outputs tell it. A detector of grey images is only run."""
    with suppress(Error):
        family = family_of(net)
        takes_image = any(net.blobs[name].shape[1] == 3 for name in image_inputs(net))
        return Task(("read" if isinstance(family, Ctpn) else "detect") if takes_image else "run", family.classes(net))
    if has_instances(net):
        number = net.blobs[SCORES].shape[1] if SCORES in net.blobs else 0
        return Task("segment", Classes(number, SCORES, default_names(number)))
    with suppress(Error):
        pair_inputs(net, net.file)
        return Task("flow" if flow_blob(net, None, net.file) else "run")
    if not image_inputs(net):
        return Task("run")
    with suppress(Error):
        return Task("pose" if map_blobs(net, (), net.file) else "run")
    with suppress(Error):
        blob = score_blob(net, None, net.file)
        number = net.blobs[blob].shape[1]
        if number <= MOST_CLASSES:
            return Task("segment", None if is_classes(net, blob) else Classes(number, blob, default_names(number)))
    with suppress(Error):
        blob = text_blob(net, net.file)
        shape = net.blobs[blob].shape
        return Task("read", Classes(shape[2], blob, None) if has_steps(shape) else None)
    with suppress(Error):
        blob = softmax_output(net, net.file)
        shape = net.blobs[blob].shape
        if net.outputs == [blob] and len(shape) > 1 and prod(shape[2:]) == 1:
            return Task("classify", Classes(shape[1], blob, None))
    return Task("run")


def softmax_output(net: Net, file: str) -> str:
    """Return the output that the net's Softmax makes. Raises Error for none and for several."""
    found = softmax_outputs(net)
    if len(found) != 1:
        what = f"{len(found)} outputs that a Softmax makes" if found else "no output that a Softmax makes"
        way = ways(": choose one with --blob")
        raise Error(f"{file}: {what}; its outputs are {', '.join(net.outputs)}{way}")
    return found[0]


def class_names(net: Net, given: Sequence[str] | None = None) -> list[str] | None:
    """Return the names of a net's classes for a file made of it: `given`, or else the usual ones for their number, or None.

    Raises Error for another number of names than the net has classes.
    """
    classes = task_of(net).classes
    if given is None:
        return classes.names if classes else None
    if classes and len(given) != classes.number:
        wrong = f"{len(given)} names of classes{in_brackets('--classes')}"
        raise Error(f"{net.file}: {wrong}, but {classes.holder} has {classes.number} classes")
    return list(given)


def read_class_names(net: Net, path: str | None) -> list[str] | None:
    """Return the names in a file in the order of the net's classes. Raises Error."""
    return None if path is None else in_order(net, read_labels(path))


def names_for(net: Net, names: Sequence[str], file: str) -> list[str]:
    """Return the names in a file in the order of the net's classes. Raises Error if a classifier has another number of them."""
    if (blob := scores_blob(net)) is None:
        return in_order(net, names)
    check_names(names, file, net.blobs[blob].shape[1])
    return list(names)


def in_order(net: Net, names: Sequence[str]) -> list[str]:
    """Return names in the order of the net's classes: those of a detector, or of characters, begin with the background."""
    with suppress(Error):
        family_of(net)
        return with_background(names)
    return with_background(names) if task_of(net).command == "read" else list(names)
