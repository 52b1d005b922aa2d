"""Random valid nets, each from a seed: a few inputs, layers of any type on blobs that suit them, losses on most ends.

Every axis of an input has a length of its own. Left out are the layers that read or write files, and those of Faster R-CNN
whose rois are sorted or drawn (Proposal, AnchorTarget, ProposalTarget); they have tests of their own.
"""

from __future__ import annotations

import contextlib

from net_builder import Builder, NoPlaceError, RandomNet
from random_layers import LAYERS
from random_losses import put_loss

from minicaffe import TEST, TRAIN


def random_net(seed: int) -> RandomNet:
    """The net of this seed, always the same."""
    b = Builder([seed, 8], TRAIN if seed % 2 else TEST)
    _inputs(b)
    for _ in range(b.whole(2, 9)):
        with contextlib.suppress(NoPlaceError):
            b.one(LAYERS)(b)
    b.body = len(b.texts)
    for x in list(b.unread):
        if b.blobs[x].count and b.shape(x) and x in b.free and b.chance(0.8):
            with contextlib.suppress(NoPlaceError):
                put_loss(b, x)
    while not b.losses:
        with contextlib.suppress(NoPlaceError):
            put_loss(b, _any(b))
    return b.net()


def _any(b: Builder) -> str:
    """A blob for a loss, new where all are too large."""
    try:
        return b.pick()
    except NoPlaceError:
        return b.input(b.normal(*b.distinct((2, 4), (3, 6))), free=True)


def _inputs(b: Builder) -> None:
    side = (20, 40) if b.large else (4, 10)
    shape = b.distinct((1, 3), (8, 19) if b.large else (2, 8), side, side)
    b.input(b.normal(*shape), free=True)
    if b.chance(0.5):
        others = [[(1, 4), (2, 6)], [(1, 3), (2, 5), (4, 9)], [(1, 2), (2, 3), (3, 4), (3, 5), (3, 6)]]
        b.input(b.normal(*b.distinct(*b.one(others))), free=True)
