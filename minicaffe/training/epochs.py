"""The size of an epoch: the images of a net's data, and the images of an update.

iterations per epoch = images / (images per pass * iter_size * ranks), rounded up
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from minicaffe.data.roidb_entry import Roidb
from minicaffe.layers.data.prefetching import DataLayer, PrefetchingLayer
from minicaffe.layers.proposal.roi_data import RoIData
from minicaffe.layers.ssd.annotated_data import AnnotatedData
from minicaffe.net import Net

if TYPE_CHECKING:
    from .solver import SGDSolver

COUNTS = ("images", "items", "records", "examples")
"""The facts of data_fingerprint() that count a layer's images."""


@dataclass(frozen=True)
class Epoch:
    """The numbers of one epoch. images: with their mirror images, if the roidb has some. batch: the images of a pass."""

    images: int
    batch: int
    iter_size: int
    ranks: int

    @property
    def iterations(self) -> int:
        """The iterations that read every image once, rounded up."""
        return self.iterations_of(1)

    @property
    def per_iteration(self) -> int:
        """The images of an iteration."""
        return self.batch * self.iter_size * self.ranks

    def iterations_of(self, epochs: int) -> int:
        """Return the iterations of some epochs, rounded up."""
        return -(-epochs * self.images // self.per_iteration)


def epoch_of(solver: SGDSolver) -> Epoch | None:
    """Return the epoch of a solver's training; None if its data layers do not count their images. Call it after set_roidb."""
    for node in solver.net.nodes:
        if isinstance(node.layer, DataLayer) and (images := image_count(node.layer)):
            return Epoch(images, pass_size(node.layer, node.tops[0].shape[0]), solver.param.iter_size, solver.exchange.count)
    return None


def image_count(layer: DataLayer) -> int:
    """Return the number of images that a data layer reads; 0 if it is unknown."""
    if isinstance(layer, RoIData):
        return len(layer.roidb)
    facts = layer.data_fingerprint() if isinstance(layer, PrefetchingLayer) else {}
    if "windows" in facts:  # WindowData's batches are of windows
        return 0
    return next((facts[name] for name in COUNTS if facts.get(name)), 0)


def pass_size(layer: DataLayer, batch: int) -> int:
    """Return the images of one pass. batch: the first axis of the layer's first top."""
    return layer.images_per_batch if isinstance(layer, RoIData) else batch


def roidb_of(net: Net) -> Roidb:
    """Return the images of the net's first layer that reads a roidb; none without one."""
    readers = (layer.roidb for layer in net.layers if isinstance(layer, RoIData | AnnotatedData))
    return next(readers, [])


def roi_reader(net: Net) -> RoIData | None:
    """Return the net's first RoIData layer, or None."""
    return next((layer for layer in net.layers if isinstance(layer, RoIData)), None)
