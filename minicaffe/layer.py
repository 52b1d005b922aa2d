"""Layer: the one base class of built-in layers and of the user's Python layers. Source: Caffe's layer.hpp.

    connect:  counts checked -> setup -> reshape -> loss weights       (once, by the net)
    forward_pass: reshape -> forward -> the layer's part of the loss   (every time)
    backward_pass: backward, and zeros for index bottoms               (every time)

A built-in layer writes setup, reshape, forward_cpu, backward_cpu (and the GPU twins); a user's layer may write
`forward(bottom, top)` and `backward(top, propagate_down, bottom)` itself, as in pycaffe.
"""

from __future__ import annotations

import builtins
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from . import limits
from .blob import Blob, BlobList, only_read
from .cuda.device import launch
from .errors import BlobError, DeviceError, Error, FillerError, LayerError, LimitError, PrototxtWarning
from .fillers import fill, leaves_zeros
from .mode import TEST, Phase, gpu_mode
from .proto import caffe_pb2

if TYPE_CHECKING:
    from .net import Net
from .formats.source import LayerSource

Count = int | tuple[int, int | None]
"""How many bottoms or tops: exactly n, or (at least, at most), None meaning no bound."""


class Layer:
    """One step of a net.

    Class facts. What the net relies on: type (Caffe's type string; the catalogue's key); num_bottom, num_top; equal_bottom_top
    (as many tops as bottoms); in_place (a top may be its bottom's blob); is_loss (the first top weighs 1 in the loss unless
    the prototxt says otherwise); auto_top (a missing top is made); index_bottoms (bottoms that hold rois, labels, indices
    or sample weights: no gradient is defined for them, backward gives them a zero diff and force_backward leaves them out;
    where they stand may depend on the blobs: then setup sets it).

    What tools rely on:
    - param_block: the blocks of the prototxt's layer that it reads, its own first.
    - weight_names: what its learnable blobs are called, in order (setup may set it); () of a type that learns nothing, None
      where the class does not say.
    - has_gradient: whether backward gives any bottom or learnable blob a gradient.
    - is_input: its tops are the net's inputs. reads_data: they come from files, or from the caller batch by batch.
      takes_arrays: by its reset(data, labels).
      is_split: its tops are its bottom, for several readers.
    - elementwise: each number of a top is the same function of the numbers at its place in the bottoms.
    - linear: y = weight * x + bias, for num_output outputs, a field of its own block. depthwise: each channel for itself.
    - is_roi_layer: pools bottom 0, a map, over the rois of bottom 1. position_sensitive: with group_size^2 channels of the map
      for each of output_dim, fields of its own block.
    - makes_rois: only forward knows how many rois its tops have (setup may set it). found_axis: the axis of its tops along
      which they have as many as forward found, None where shapes are known before.
    - keeps_input: where a top is its bottom, forward keeps what the bottom held, for backward.
    - copies: how many times the first bottom's size forward and backward take beside the blobs, while they run (setup may set
      it); about 0 where they go over them block by block.
    And in methods, at the shapes that the blobs have: multiply_adds, kept_bytes, cached_bytes, working_bytes, suppose_rois.

    forward_only: whether no backward will come, so that forward need keep nothing for it (a net may say so of its layers).

    Object facts: param (LayerParameter), name, type (the prototxt's, so "Python" for Python layers), phase, dtype, blobs
    (learnable Blobs), loss_weights (one per top), param_propagate_down (one bool per learnable blob: whether backward
    computes its gradient), source.
    """

    type: str = ""
    num_bottom: ClassVar[Count] = (0, None)
    num_top: ClassVar[Count] = (0, None)
    equal_bottom_top: ClassVar[bool] = False
    in_place: ClassVar[bool] = False
    is_loss: ClassVar[bool] = False
    auto_top: ClassVar[bool] = False
    index_bottoms: tuple[int, ...] = ()
    param_block: ClassVar[tuple[str, ...]] = ()
    weight_names: tuple[str, ...] | None = None
    has_gradient: ClassVar[bool] = True
    is_input: ClassVar[bool] = False
    reads_data: ClassVar[bool] = False
    takes_arrays: ClassVar[bool] = False
    is_split: ClassVar[bool] = False
    elementwise: ClassVar[bool] = False
    linear: ClassVar[bool] = False
    depthwise: ClassVar[bool] = False
    is_roi_layer: ClassVar[bool] = False
    position_sensitive: ClassVar[bool] = False
    makes_rois: bool = False
    found_axis: ClassVar[int | None] = None
    keeps_input: ClassVar[bool] = False
    copies: tuple[float, float] = (1, 1)
    forward_only: bool = False
    net_class: ClassVar[builtins.type[Net]]
    """Net, for layers that hold a net of their own; net.py, which imports this file, sets it."""

    def __init__(
        self,
        param: caffe_pb2.LayerParameter,
        *,
        phase: Phase = TEST,
        dtype: DTypeLike = np.float32,
        source: LayerSource | None = None,
    ) -> None:
        self.param, self.phase, self.source = param, phase, source
        self.name = param.name
        self.type = param.type or self.type
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.blobs = BlobList(self.dtype)
        self.param_propagate_down: list[bool] = []
        self.loss_weights: list[float] = []
        self._gpu_methods_apply = gpu_methods_apply(type(self))
        self._weighted: dict[int, tuple[int, ...]] = {}
        self.param_str = param.python_param.param_str
        self.param_str_ = self.param_str

    # What a layer writes.

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Read self.param, check it, make the learnable blobs (Caffe's LayerSetUp)."""

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Give the tops (and buffers) their shapes from the bottoms'."""

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Compute the tops' data from the bottoms'."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """forward_cpu on the GPU; a layer without it runs that."""
        with only_read(blob.data_memory for blob in bottom if blob not in top):
            self.forward_cpu(bottom, top)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        """Overwrite the diffs of the bottoms that propagate_down names; add to the learnable blobs' diffs."""

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        """backward_cpu on the GPU; a layer without it runs that."""
        data = [blob.data_memory for blob in [*bottom, *top]]
        with only_read(data + [blob.diff_memory for blob in top if blob not in bottom]):
            self.backward_cpu(top, propagate_down, bottom)

    def launch(self, kernel: str, threads: int, *arguments: int | float) -> None:
        """Run a kernel, "stem.name" of cuda/stem.cu, over `threads` items, compiled for the layer's dtype; pointers are
        addresses from Blob.device_data and device_diff. Nothing runs for 0 items."""
        launch(kernel, self.dtype, threads, *arguments)

    def training_state(self) -> dict[str, Any]:
        """What a resumed training needs from this layer beside its learnable blobs, as JSON holds it: a data layer's place
        and its generator's state, as of the last batch handed out."""
        return {}

    def restore_training_state(self, state: dict[str, Any]) -> None:
        """Go on from a state that training_state gave."""

    def data_fingerprint(self) -> dict[str, Any]:
        """How many records a data layer has, and checksums, by name: what must be alike in ranks that train together."""
        return {}

    # What a layer says of itself, at the shapes that its blobs have; nothing is computed.

    def multiply_adds(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> int | None:
        """Multiplications by weights in a forward pass, each with its addition; None where the class does not say."""
        return 0 if self.weight_names == () else None

    def kept_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
        """What forward keeps beside the blobs for backward, whether or not one comes (but for forward_only)."""
        return 0

    def cached_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
        """What is made of the weights once and kept for the next forward."""
        return 0

    def working_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> int:
        """The most that a forward takes beside the blobs and gives back, or with propagate_down a forward and a backward. A
        class that does not say is taken to copy its first bottom."""
        return int(data_bytes(bottom[:1]) * (self.copies[0] if propagate_down is None else max(self.copies)))

    def suppose_rois(self, bottom: Sequence[Blob], top: Sequence[Blob], rois: int | None) -> None:
        """Of a type that makes_rois: give the tops the shapes of as many as one image gives; rois: how many that is taken to be
        where a proposal layer says."""

    def weight_name(self, i: int) -> str:
        """What learnable blob i is called."""
        names = self.weight_names or ()
        return names[i] if i < len(names) else f"blob {i}"

    # The switch. A user's Python layer overrides these two.

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Run on the CPU or the GPU, whichever is set. Numbers out of range are infinite without a warning, as in Caffe."""
        with np.errstate(all="ignore"):
            if not gpu_mode():
                self.forward_cpu(bottom, top)
            elif self._gpu_methods_apply:
                self.forward_gpu(bottom, top)
            else:
                Layer.forward_gpu(self, bottom, top)

    def backward(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        """Run backward on the CPU or the GPU, whichever is set."""
        with np.errstate(all="ignore"):
            if not gpu_mode():
                self.backward_cpu(top, propagate_down, bottom)
            elif self._gpu_methods_apply:
                self.backward_gpu(top, propagate_down, bottom)
            else:
                Layer.backward_gpu(self, top, propagate_down, bottom)

    # What the net calls.

    def connect(self, bottom: Sequence[Blob], top: Sequence[Blob], is_set_up: Callable[[], None] | None = None) -> None:
        """Set the layer up on its blobs (Caffe's SetUp); is_set_up: called between setup and reshape. Raises LayerError."""
        self._check_counts(len(bottom), len(top))
        self.guard(lambda: self.setup(bottom, top))
        if is_set_up:
            is_set_up()
        self.reshape_pass(bottom, top)
        self._check_reshape(top)
        self.loss_weights = self._read_loss_weights(len(top))
        self._put_loss_weights(top)
        if not self.param_propagate_down:
            self.param_propagate_down = [True] * len(self.blobs)

    def reshape_pass(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Reshape. Raises LayerError, also for shapes that no blob can have."""
        self.guard(lambda: self.reshape(bottom, top))

    def forward_pass(self, bottom: Sequence[Blob], top: Sequence[Blob], reshaped: Callable[[], None] | None = None) -> float:
        """Reshape, then forward; returns the tops' weighted part of the loss. reshaped: called between the two."""
        self.reshape_pass(bottom, top)
        if reshaped:
            reshaped()
        self._put_loss_weights(top)
        self.guard(lambda: self.forward(bottom, top))
        return sum(
            weight * float(blob.read_data().sum(dtype=np.float64))
            for weight, blob in zip(self.loss_weights, top, strict=True)
            if weight
        )

    def backward_pass(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        """Backward, after index bottoms' diffs are zeroed."""
        for i in self.index_bottoms:
            if i < len(bottom) and propagate_down[i]:
                bottom[i].zero_diff()
        self.guard(lambda: self.backward(top, propagate_down, bottom))

    def learn(self, shapes: Sequence[tuple[int, ...]], fillers: Sequence[caffe_pb2.FillerParameter]) -> None:
        """Make the learnable blobs of these shapes, filled; blobs that the layer was given before must have them."""
        if self.blobs:
            have = [blob.shape for blob in self.blobs]
            if have != list(shapes):
                raise self.error(f"the blobs it was given have shapes {have}, it needs {list(shapes)}")
            return
        for shape in shapes[: len(fillers)]:
            self.blobs.add_blob(*shape)
        limits.check("the layer", sum(blob.count for blob in self.blobs) * self.dtype.itemsize, "bytes")
        for blob, filler in zip(self.blobs, fillers, strict=False):
            if not leaves_zeros(filler):
                fill(blob.data, filler)

    def error(self, message: str, field: str = "") -> LayerError:
        """A LayerError that names the layer and, where the prototxt is known, the place of field (a path like
        "roi_pooling_param.pooled_h", "bottom[1]"). Use: `raise self.error("pooled_h must be > 0, got 0", "...")`."""
        place = f" ({self.source.at(field)})" if self.source else ""
        kind = self.type or type(self).__name__
        return LayerError(f'{kind} layer "{self.name}": {message}{place}')

    def warn(self, message: str, field: str = "") -> None:
        """A PrototxtWarning that names the layer and the place of field, as error's message does."""
        warnings.warn(str(self.error(message, field)), PrototxtWarning, stacklevel=3)

    def axis_of(self, axis: int, blob: Blob, field: str = "") -> int:
        """axis of blob, counted from 0; a negative axis counts from the end. Raises LayerError where blob has no such axis."""
        axes = len(blob.shape)
        if not axes:
            raise self.error(f"axis {axis} is out of range: the bottom is a scalar, which has no axes", field)
        if not -axes <= axis < axes:
            raise self.error(f"axis {axis} is out of range for shape {blob.shape}: it must be in [{-axes}, {axes - 1}]", field)
        return axis % axes

    # Inside.

    def guard(self, run: Callable[[], object]) -> None:
        """Run a step; shapes and sizes no blob can have, misused fillers and a lack of memory become errors of this layer."""
        try:
            run()
        except (BlobError, FillerError, LimitError) as error:
            raise self.error(str(error)) from error
        except MemoryError as error:
            raise self.error(f"out of memory: {error}") from error
        except DeviceError as error:
            raise DeviceError(str(self.error(str(error)))) from error
        except Error:
            raise
        except Exception as error:
            self._name_in(error)
            raise

    def _name_in(self, error: Exception) -> None:
        """Say in the traceback which layer it was (Python 3.11 and newer)."""
        note = str(self.error("its code raised this error"))
        if hasattr(error, "add_note") and note not in getattr(error, "__notes__", []):
            error.add_note(note)

    def _check_counts(self, bottoms: int, tops: int) -> None:
        for what, have, want in (("bottom", bottoms, self.num_bottom), ("top", tops, self.num_top)):
            least, most = (want, want) if isinstance(want, int) else want
            if have < least or (most is not None and have > most):
                raise self.error(f"takes {_count_text(least, most, what)}, got {have}", what)
        if self.equal_bottom_top and bottoms != tops:
            raise self.error(f"takes as many tops as bottoms, got {bottoms} bottoms and {tops} tops", "top")

    def _check_reshape(self, top: Sequence[Blob]) -> None:
        """A class with pycaffe's forward needs its reshape too, or a setup that shapes the tops."""
        own, bare = type(self), [i for i, blob in enumerate(top) if not blob.shape]
        if bare and own.forward is not Layer.forward and own.reshape is Layer.reshape:
            i = bare[0]
            raise self.error(
                f"the class {own.__name__} has no reshape, so that top {i} never gets a shape:"
                f" write reshape(self, bottom, top) with top[{i}].reshape(...)"
            )

    def _read_loss_weights(self, tops: int) -> list[float]:
        given = list(self.param.loss_weight)
        if given and len(given) != tops:
            raise self.error(f"{len(given)} loss_weight given for {tops} tops: give one for each, or none", "loss_weight")
        default = [1.0] + [0.0] * (tops - 1) if self.is_loss and tops else [0.0] * tops
        return given or default

    def _put_loss_weights(self, top: Sequence[Blob]) -> None:
        """Fill the diffs of loss tops, once for each shape they take: what a caller writes there later stays."""
        for i, (weight, blob) in enumerate(zip(self.loss_weights, top, strict=True)):
            if weight and self._weighted.get(i) != blob.shape:
                blob.diff[...] = weight
                self._weighted[i] = blob.shape


def gpu_methods_apply(kind: type[Layer]) -> bool:
    """Whether the class's GPU methods compute what its CPU methods do. They do not where a class overrides a CPU method and
    inherits the GPU method for it: then the layer runs on the CPU, backward too, which may read what forward kept."""

    def definer(method: str) -> int:
        return next(i for i, base in enumerate(kind.__mro__) if method in vars(base))

    none = kind.__mro__.index(Layer)
    pairs = [(definer(f"{way}_cpu"), definer(f"{way}_gpu")) for way in ("forward", "backward")]
    return all(gpu <= cpu or gpu == none for cpu, gpu in pairs)


def data_bytes(blobs: Iterable[Blob]) -> int:
    """Of the data of these blobs."""
    return sum(blob.count * blob.dtype.itemsize for blob in blobs)


def _count_text(least: int, most: int | None, what: str) -> str:
    if most == least:
        return f"{least} {what}" + "s" * (least != 1)
    return f"at least {least} {what}s" if most is None else f"{least} to {most} {what}s"
