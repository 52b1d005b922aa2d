"""The text that a CRNN reads: the best class of each time step, repeats merged, blanks dropped (greedy CTC)."""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.blob import Array
from minicaffe.errors import Error
from minicaffe.layers.recurrent.ctc import best_path, until_negative

from .outputs import check_scores


def read_text(scores: Array, alphabet: Sequence[str], blank: int = 0) -> str:
    """The text of scores (T, C) through time: alphabet has the characters of the classes other than blank, in their order.
    Raises Error for another number of characters, a blank that is no class, and NaN or infinite scores."""
    classes = scores.shape[1]
    if not 0 <= blank < classes:
        raise Error(f"the blank, {blank}, is none of the net's {classes} classes")
    if len(alphabet) != classes - 1:
        raise Error(
            f"the alphabet has {len(alphabet)} characters, but the net has {classes} classes: the blank and {classes - 1}"
        )
    check_scores(scores)
    found = best_path(scores.argmax(axis=1).tolist(), blank)
    return "".join(alphabet[k - (k > blank)] for k in found)


def decoded_text(labels: Array, alphabet: Sequence[str], blank: int | None) -> str:
    """The text of a CTCGreedyDecoder's labels, which end before the first -1. blank: as its layer has it; None: the last class.
    Raises Error for labels beyond the alphabet."""
    found = [int(k) for k in until_negative(labels.reshape(-1))]
    places = [k - (blank is not None and k > blank) for k in found]
    if places and max(places) >= len(alphabet):
        raise Error(
            f"the alphabet has {len(alphabet)} characters, but the net reads class {max(found)}: give the characters that the "
            "net was trained with, in its order"
        )
    return "".join(alphabet[k] for k in places)
