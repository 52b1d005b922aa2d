"""Layer: the one base class of built-in layers and of the user's Python layers. Source: Caffe's layer.hpp.

    connect:  counts checked -> setup -> reshape -> loss weights       (once, by the net)
    forward_pass: reshape -> forward -> the layer's part of the loss   (every time)
    backward_pass: backward, and zeros for index bottoms               (every time)

A built-in layer defines setup, reshape, forward_cpu, backward_cpu and their GPU twins; a user's layer may define
`forward(bottom, top)` and `backward(top, propagate_down, bottom)` instead, as in pycaffe.
"""

from __future__ import annotations

import builtins
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from google.protobuf.message import Message
from numpy.typing import DTypeLike

from minicaffe.formats.forks import UNKNOWN, NetFork

from . import limits
from .blob import Array, Blob, BlobList, bump_version, only_read
from .cuda.device import launch
from .errors import BlobError, DeviceError, Error, FillerError, LayerError, LimitError, PrototxtWarning, out_of_memory
from .fillers import fill, leaves_zeros
from .formats.source import LayerSource
from .kernels import Kernel, step_of
from .mode import TEST, Phase, gpu_mode
from .proto import caffe_pb2
from .reads import Axis, same_places

if TYPE_CHECKING:
    from .data.settings import DetectionSettings

Done = TypeVar("Done")

Count = int | tuple[int, int | None]
"""A number of bottoms or tops: exactly n, or (at least, at most), None meaning no bound."""


class AsManyAsBottoms(NamedTuple):
    """The value of num_top for a type that has as many tops as bottoms, one or more."""

    least: int = 1
    most: int | None = None


_UNSET = object()
"""The value of a missing attribute."""


class Costs(NamedTuple):
    """A layer's work, and its bytes besides the blobs.

    multiply_adds: with weights, in a forward; None if unknown. saved: what forward keeps for backward, except with
    forward_only. cached: what is computed from the weights once and kept. working: the peak of temporary memory.
    """

    multiply_adds: int | None
    saved: int
    cached: int
    working: int


class Layer:
    """One step of a net.

    A built-in layer defines setup, reshape, forward_cpu, backward_cpu and their GPU twins.
    A user's layer may define ``forward(bottom, top)`` and ``backward(top, propagate_down, bottom)`` instead, as in pycaffe.

    Parameters
    ----------
    param : LayerParameter
        The layer in the prototxt.
    phase : Phase, default TEST
        TRAIN or TEST.
    dtype : dtype, default float32
        The type of the blobs: float32 or float64.
    source : LayerSource, optional
        The layer's place in the prototxt's text, for messages.

    Attributes
    ----------
    type : str
        Caffe's type string, the catalogue's key. In an object: the prototxt's, so "Python" for Python layers.
    num_bottom, num_top : int or (int, int or None)
        The number of bottoms or tops: exact, or the least and the most. None means no bound.
    in_place : bool
        True if a top may be its bottom's blob.
    is_loss : bool
        True if the first top's default loss weight is 1.
    auto_top : bool
        True if missing tops are added.
    index_bottoms : tuple of int
        Bottoms that hold rois, labels, indices or sample weights. They have no gradient: backward zeroes their diff, and
        force_backward skips them. setup may set it. Without has_gradient, connect sets it to all bottoms.
    param_block : tuple of str
        The prototxt blocks that the layer reads, its main one first.
    weight_names : tuple of str or None
        Names of its learnable blobs, in order: () for none, None for unknown. setup may set it.
    has_gradient : bool
        True if backward gives any bottom or learnable blob a gradient.
    elementwise : bool
        True if each element of a top is the same function of the bottoms' elements at its index.
    linear : bool
        True if y = weight * x + bias, and param_block[0] has num_output.
    same_positions : bool
        True if each element of the top has its position in the bottom, as with elementwise. It may depend on others too.
    keeps_input : bool
        True if forward in place keeps a copy of its input for backward.
    only_shares : bool
        True if forward computes nothing in TEST: each top is a bottom, shares its memory, or is the caller's.
        reshape shares the memory. setup or reshape may set it.
    copies : (float, float)
        The default working memory of forward and of backward, in sizes of the first bottom. setup may set it.
    stateful : bool
        True if forwards must follow each other in one process. A forward then depends on earlier ones or writes to a file.
        setup may set it.
    uses_kernels : (sequence of Kernel, sequence of Kernel)
        Kernels that forward and backward call, to compile ahead. setup may set it.
    forward_only : bool
        True if backward will never run, so that forward keeps nothing for it. A net may set it.
    gradient_wanted : bool
        True if the net's backward runs the layer. A net sets it.
    watched : bool
        True if setting another attribute counts as a change (blob.current_version).
    changes : int
        The number of changes so far.
    param : LayerParameter
        The layer in the prototxt.
    name : str
        The layer's name.
    phase : Phase
        TRAIN or TEST.
    dtype : numpy.dtype
        The type of the blobs.
    source : LayerSource or None
        The layer's place in the prototxt's text.
    settings : DetectionSettings
        The net's detection settings, set before setup.
    fork : NetFork
        The net's fork, set before setup.
    param_str : str
        The text of python_param.param_str, as in pycaffe.
    blobs : BlobList
        The learnable blobs.
    loss_weights : list of float
        One loss weight per top.
    param_propagate_down : list of bool
        One per learnable blob: True if backward computes its gradient.

    Notes
    -----
    The methods costs and reads give facts for the blobs' current shapes.
    Base classes of fewer types have further hooks: forked.Forked and LayoutFromWeights (other blobs in stored weights), and
    layers.proposal.dynamic_tops.DynamicTops (forward finds the tops' length).
    Tools ask if a layer is a layers.data.prefetching.DataLayer, data.input.Input, shape.split.Split or roi.roi_layer.RoiLayer.
    Derive from one of these to count as one.
    Three protocols need no base: data.state_fields.Resumable, training.running_state.HasRunningBlobs and
    scaling.mpi.sameness.HasDataFacts.
    Source: Caffe's layer.hpp.
    """

    type: str = ""
    num_bottom: ClassVar[Count] = (0, None)
    num_top: ClassVar[Count] = (0, None)
    in_place: ClassVar[bool] = False
    is_loss: ClassVar[bool] = False
    auto_top: ClassVar[bool] = False
    index_bottoms: tuple[int, ...] = ()
    param_block: ClassVar[tuple[str, ...]] = ()
    weight_names: tuple[str, ...] | None = None
    has_gradient: ClassVar[bool] = True
    elementwise: ClassVar[bool] = False
    same_positions: ClassVar[bool] = False
    linear: ClassVar[bool] = False
    keeps_input: ClassVar[bool] = False
    copies: tuple[float, float] = (1, 1)
    only_shares: bool = False
    stateful: bool = False
    uses_kernels: tuple[Sequence[Kernel[..., Any]], Sequence[Kernel[..., Any]]] = ((), ())
    fork: NetFork = UNKNOWN
    forward_only: bool = False
    watched: bool = False
    changes: int = 0
    gradient_wanted: bool = True
    settings: DetectionSettings

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

    def __setattr__(self, name: str, value: object) -> None:
        if not self.watched or _are_same(getattr(self, name, _UNSET), value):
            super().__setattr__(name, value)
            return
        self._note_change()  # before: an interrupt may follow; after: another thread may have read the old value
        super().__setattr__(name, value)
        self._note_change()

    def __delattr__(self, name: str) -> None:
        self._note_change()  # before and after, as in __setattr__
        super().__delattr__(name)
        self._note_change()

    def _note_change(self) -> None:
        vars(self)["changes"] = self.changes + 1
        bump_version()

    # Methods that a layer defines.

    @classmethod
    def resolve_class(cls, param: caffe_pb2.LayerParameter, fork: NetFork) -> builtins.type[Layer]:
        """Return the class that computes a layer in a net of this fork.

        Parameters
        ----------
        param : LayerParameter
            The layer in the prototxt.
        fork : NetFork
            The net's fork.

        Returns
        -------
        type of Layer
            This class. A type with several classes returns a subclass.
        """
        return cls

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Read self.param, check it, and make the learnable blobs, as Caffe's LayerSetUp.

        Parameters
        ----------
        bottom, top : sequence of Blob
            The blobs that the layer reads and writes.
        """

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Set the shapes of the tops, and of buffers, from the bottoms' shapes.

        Parameters
        ----------
        bottom, top : sequence of Blob
            The blobs that the layer reads and writes.
        """

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Compute the tops' data from the bottoms' data.

        Parameters
        ----------
        bottom, top : sequence of Blob
            The blobs that the layer reads and writes.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Compute forward_cpu's result on the GPU. By default forward_cpu runs.

        Parameters
        ----------
        bottom, top : sequence of Blob
            The blobs that the layer reads and writes.
        """
        # forward_cpu takes bottom.data, which would count as a write.
        with only_read(blob.data_memory for blob in bottom if blob not in top):
            self.forward_on_host(bottom, top)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        """Compute the gradients from the tops' diffs.

        Overwrite the diffs of the selected bottoms, and add to the learnable blobs' diffs.

        Parameters
        ----------
        top : sequence of Blob
            The blobs that the layer writes in forward.
        propagate_down : sequence of bool
            Selects the bottoms that get a gradient.
        bottom : sequence of Blob
            The blobs that the layer reads in forward.
        """
        of_tops = {blob.diff_memory for blob in top}  # a bottom that shares a top's diff already has its own
        wanted = [blob for i, blob in enumerate(bottom) if propagate_down[i] and i not in self.index_bottoms]
        if self.has_gradient and any(blob.diff_memory not in of_tops for blob in wanted):
            raise NotImplementedError(
                f"{type(self).__name__} has no backward; if none is to run, give the class has_gradient = False"
            )

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        """Compute backward_cpu's result on the GPU. By default backward_cpu runs.

        Parameters
        ----------
        top : sequence of Blob
            The blobs that the layer writes in forward.
        propagate_down : sequence of bool
            Selects the bottoms that get a gradient.
        bottom : sequence of Blob
            The blobs that the layer reads in forward.
        """
        # backward_cpu writes only the bottoms' diffs. In place, these are the tops' diffs too.
        data = [blob.data_memory for blob in [*bottom, *top]]
        with only_read(data + [blob.diff_memory for blob in top if blob not in bottom]):
            self.backward_cpu(top, propagate_down, bottom)

    def launch(self, kernel: str, threads: int, *arguments: int | float) -> None:
        """Run a kernel of cuda/stem.cu, compiled for the layer's dtype.

        Parameters
        ----------
        kernel : str
            The name, as "stem.name".
        threads : int
            The number of items. With 0 nothing runs.
        *arguments : int or float
            The kernel's arguments. For pointers pass addresses from Blob.device_data and device_diff.
        """
        launch(kernel, self.dtype, threads, *arguments)

    # Facts for the blobs' current shapes; nothing is computed.

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        """Return the costs for the blobs' current shapes, without computing anything.

        Parameters
        ----------
        bottom, top : sequence of Blob
            The blobs that the layer reads and writes.
        propagate_down : sequence of bool, optional
            The bottoms that get a gradient. If given, the costs are those of a forward and a backward.

        Returns
        -------
        Costs
            Multiply-adds, and bytes of saved, cached and working memory.
        """
        copies = self.copies[0] if propagate_down is None else max(self.copies)
        return Costs(0 if self.weight_names == () else None, 0, 0, int(data_bytes(bottom[:1]) * copies))

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        """Return the positions of a bottom that each position of a top reads, for each axis after the channels.

        Parameters
        ----------
        bottom, top : sequence of Blob
            The blobs that the layer reads and writes.
        b, t : int, default 0
            Indices of the bottom and the top.

        Returns
        -------
        tuple of Axis, or None
            One Axis per axis after the channels. None stands for any position.
        """
        return same_places(bottom[b].shape, top[t].shape) if self.elementwise or self.same_positions else None

    # The switch between CPU and GPU. A user's Python layer overrides forward and backward.

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Run forward on the CPU or the GPU, by the mode.

        Overflow gives infinity without a warning, as in Caffe.

        Parameters
        ----------
        bottom, top : sequence of Blob
            The blobs that the layer reads and writes.
        """
        with np.errstate(all="ignore"):
            if not gpu_mode():
                self.forward_on_host(bottom, top)
            elif self._gpu_methods_apply:
                self.forward_gpu(bottom, top)
            else:
                Layer.forward_gpu(self, bottom, top)  # Layer's method runs the overridden forward_cpu

    def forward_on_host(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Run forward_cpu, or the step of compiled loops that replaces it.

        Parameters
        ----------
        bottom, top : sequence of Blob
            The blobs that the layer reads and writes.
        """
        (step_of(self, bottom, top) or partial(self.forward_cpu, bottom, top))()

    def backward(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        """Run backward on the CPU or the GPU, by the mode.

        Parameters
        ----------
        top : sequence of Blob
            The blobs that the layer writes in forward.
        propagate_down : sequence of bool
            Selects the bottoms that get a gradient.
        bottom : sequence of Blob
            The blobs that the layer reads in forward.
        """
        with np.errstate(all="ignore"):
            if not gpu_mode():
                self.backward_cpu(top, propagate_down, bottom)
            elif self._gpu_methods_apply:
                self.backward_gpu(top, propagate_down, bottom)
            else:
                Layer.backward_gpu(self, top, propagate_down, bottom)

    # Methods that the net calls.

    def connect(self, bottom: Sequence[Blob], top: Sequence[Blob], is_set_up: Callable[[], None] | None = None) -> None:
        """Set the layer up on its blobs, as Caffe's SetUp.

        Parameters
        ----------
        bottom, top : sequence of Blob
            The blobs that the layer reads and writes.
        is_set_up : callable, optional
            Called without arguments between setup and reshape.

        Raises
        ------
        LayerError
            The layer does not take these blobs or parameters.
        """
        _check_counts(self, len(bottom), len(top))
        if not self.has_gradient:
            self.index_bottoms = tuple(range(len(bottom)))
        self.guard(lambda: self.setup(bottom, top))
        if is_set_up:
            is_set_up()
        self.reshape_pass(bottom, top)
        _check_reshape(self, top)
        self.loss_weights = _loss_weights(self, len(top))
        _put_loss_weights(self, top)
        if not self.param_propagate_down:  # for a layer without a net; a net sets it later from lr_mult
            self.param_propagate_down = [True] * len(self.blobs)

    def reshape_pass(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Run reshape, and report impossible shapes as errors of this layer.

        Parameters
        ----------
        bottom, top : sequence of Blob
            The blobs that the layer reads and writes.

        Raises
        ------
        LayerError
            The layer does not take these shapes, or no blob can have a top's shape.
        """
        self.guard(lambda: self.reshape(bottom, top))

    def forward_pass(self, bottom: Sequence[Blob], top: Sequence[Blob], reshaped: Callable[[], None] | None = None) -> float:
        """Run reshape, then forward.

        Parameters
        ----------
        bottom, top : sequence of Blob
            The blobs that the layer reads and writes.
        reshaped : callable, optional
            Called without arguments between reshape and forward.

        Returns
        -------
        float
            The tops' weighted part of the loss.
        """
        self.reshape_and_forward(bottom, top, reshaped)
        return _loss(self.loss_weights, [blob.read_data for blob in top]) if any(self.loss_weights) else 0.0

    def reshape_and_forward(
        self, bottom: Sequence[Blob], top: Sequence[Blob], reshaped: Callable[[], None] | None = None
    ) -> None:
        """Run reshape, then forward, without the loss.

        Parameters
        ----------
        bottom, top : sequence of Blob
            The blobs that the layer reads and writes.
        reshaped : callable, optional
            Called without arguments between reshape and forward.
        """
        self.reshape_pass(bottom, top)
        if reshaped:
            reshaped()
        if any(self.loss_weights):
            _put_loss_weights(self, top)  # a new shape may mean new memory, which lacks the weights
        self.guard(lambda: self.forward(bottom, top))

    def loss_later(self, top: Sequence[Blob]) -> Callable[[], float]:
        """Return a function that gives forward_pass's result for the tops' current values.

        Parameters
        ----------
        top : sequence of Blob
            The tops.

        Returns
        -------
        callable
            On the GPU, call it after the next wait for the stream, so that a net waits once for all its losses.
        """
        reads = [blob.read_later() if weight else blob.read_data for blob, weight in zip(top, self.loss_weights, strict=True)]
        return partial(_loss, self.loss_weights, reads)

    def backward_pass(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        """Zero the diffs of index bottoms, then run backward.

        Parameters
        ----------
        top : sequence of Blob
            The blobs that the layer writes in forward.
        propagate_down : sequence of bool
            Selects the bottoms that get a gradient.
        bottom : sequence of Blob
            The blobs that the layer reads in forward.
        """
        for i in self.index_bottoms:
            if i < len(bottom) and propagate_down[i]:
                bottom[i].zero_diff()
        self.guard(lambda: self.backward(top, propagate_down, bottom))

    def learn(self, shapes: Sequence[tuple[int, ...]], fillers: Sequence[caffe_pb2.FillerParameter]) -> None:
        """Add learnable blobs, and fill them.

        Parameters
        ----------
        shapes : sequence of tuple of int
            A shape for each blob.
        fillers : sequence of FillerParameter
            A filler for each blob. Shapes without a filler add no blob.

        Raises
        ------
        LayerError
            The layer already has blobs of other shapes.
        """
        if self.blobs:
            have = [blob.shape for blob in self.blobs]
            if have != list(shapes):
                raise self.error(f"its blobs have shapes {have}, but it needs {list(shapes)}")
            return
        for shape in shapes[: len(fillers)]:
            self.blobs.add_blob(*shape)
        # Check before any memory is allocated.
        limits.check("the layer", sum(blob.count for blob in self.blobs) * self.dtype.itemsize, "bytes")
        for blob, filler in zip(self.blobs, fillers, strict=False):  # without bias_term, the bias filler is unused
            if not leaves_zeros(filler):
                fill(blob.data, filler)

    def error(self, message: str, field: str = "") -> LayerError:
        """Return a LayerError that names the layer and, if known, the prototxt's file and line.

        Raise it yourself: ``raise self.error("pooled_h must be > 0, got 0", "roi_pooling_param.pooled_h")``.

        Parameters
        ----------
        message : str
            The text.
        field : str, optional
            The field at fault, as a path such as "roi_pooling_param.pooled_h" or "bottom[1]".

        Returns
        -------
        LayerError
            The error to raise.
        """
        place = f" ({self.source.at(field)})" if self.source else ""
        kind = self.type or type(self).__name__
        return LayerError(f'{kind} layer "{self.name}": {message}{place}')

    def warn(self, message: str, field: str = "") -> None:
        """Issue a PrototxtWarning with the text that `error` would have.

        Parameters
        ----------
        message : str
            The text.
        field : str, optional
            The field at fault, as a path such as "roi_pooling_param.pooled_h" or "bottom[1]".
        """
        warnings.warn(str(self.error(message, field)), PrototxtWarning, stacklevel=3)

    def axis_of(self, axis: int, blob: Blob, field: str = "") -> int:
        """Return an axis of a blob as a number from 0.

        Parameters
        ----------
        axis : int
            The axis. A negative one counts from the end.
        blob : Blob
            The blob.
        field : str, optional
            The prototxt field that gives the axis, for the message.

        Returns
        -------
        int
            The axis, from 0.

        Raises
        ------
        LayerError
            The axis is out of range.
        """
        axes = len(blob.shape)
        if not axes:
            raise self.error(f"axis {axis} is out of range: the bottom is a scalar, which has no axes", field)
        if not -axes <= axis < axes:
            raise self.error(f"axis {axis} is out of range for shape {blob.shape}: it must be in [{-axes}, {axes - 1}]", field)
        return axis % axes

    @property
    def has_gpu_forward(self) -> bool:
        """True if the class has a forward on the GPU, which the layer may still decline for its parameters."""
        kind = type(self)
        own = kind.forward_gpu is not Layer.forward_gpu and kind.forward is Layer.forward
        return own and self._gpu_methods_apply

    # Internal.

    def guard(self, run: Callable[[], Done]) -> Done:
        """Run a step, and turn its errors into errors of this layer.

        Impossible shapes, misused fillers and a lack of memory are such errors.

        Parameters
        ----------
        run : callable
            The step, without arguments.

        Returns
        -------
        object
            The result of the step.
        """
        try:
            return run()
        except (BlobError, FillerError, LimitError) as error:
            raise self.error(str(error)) from error
        except MemoryError as error:
            raise self.error(out_of_memory(error)) from error
        except DeviceError as error:
            raise DeviceError(str(self.error(str(error)))) from error
        except Error:  # the error already names its layer or file
            raise
        except Exception as error:
            note = str(self.error("its code raised this error"))
            if hasattr(error, "add_note") and note not in getattr(error, "__notes__", []):  # Python 3.11 and newer
                error.add_note(note)
            raise


class Unary(Layer):
    """A layer of one bottom and one top, without weights."""

    num_bottom = 1
    num_top = 1
    weight_names = ()


def gpu_methods_apply(kind: type[Layer]) -> bool:
    """Return whether the class's GPU methods match its CPU methods.

    A class that overrides a CPU method and inherits the GPU method for it runs forward and backward on the CPU: one may read
    what the other kept.
    """

    def definer(method: str) -> int:
        return next(i for i, base in enumerate(kind.__mro__) if method in vars(base))

    none = kind.__mro__.index(Layer)  # a GPU method of the base runs the CPU method, so it always matches
    pairs = [(definer(f"{way}_cpu"), definer(f"{way}_gpu")) for way in ("forward", "backward")]
    return all(gpu <= cpu or gpu == none for cpu, gpu in pairs)


def hold_still(layer: Layer, learnt: Sequence[bool]) -> None:
    """Keep backward and solvers from changing blobs. learnt: True for each blob that they may change."""
    layer.param_propagate_down = list(learnt)
    while not all(learnt) and len(layer.param.param) < len(learnt):
        layer.param.param.add()
    for spec, is_learnt in zip(layer.param.param, learnt):
        if not is_learnt:
            spec.lr_mult = spec.decay_mult = 0


def check_finite_fields(layer: Layer, block: str) -> None:
    """Raise LayerError for a number in a block of the layer's parameters that is infinite or NaN."""
    message: Message = reduce(getattr, block.split("."), layer.param)
    for field, value in message.ListFields():
        for number in value if isinstance(value, Sequence) else [value]:
            if isinstance(number, float) and not math.isfinite(number):
                raise layer.error(f"{field.name} must be finite, got {number:g}", f"{block}.{field.name}")


def data_bytes(blobs: Iterable[Blob]) -> int:
    """Return the number of bytes of these blobs' data."""
    return sum(blob.count * blob.dtype.itemsize for blob in blobs)


def attributes(layer: Layer) -> dict[str, object]:
    """Return the values of a layer's attributes, for are_attributes."""
    return {name: value for name, value in vars(layer).items() if name not in ("watched", "changes")}


def are_attributes(layer: Layer, before: Mapping[str, object]) -> bool:
    """Return True if a layer's attributes certainly have the values that they had before."""
    now = attributes(layer)
    return now.keys() == before.keys() and all(_are_same(value, now[name]) for name, value in before.items())


def _are_same(one: object, other: object) -> bool:
    """Return True if two values of an attribute are certainly equal."""
    if one is other:
        return True
    try:
        return bool(one == other)
    except Exception:  # arrays and tensors have no single truth value
        return False


def _check_counts(layer: Layer, bottoms: int, tops: int) -> None:
    for what, have, want in (("bottom", bottoms, layer.num_bottom), ("top", tops, layer.num_top)):
        least, most = (want, want) if isinstance(want, int) else want
        if have < least or (most is not None and have > most):
            raise layer.error(f"takes {_count_text(least, most, what)}, got {have}", what)
    if isinstance(layer.num_top, AsManyAsBottoms) and bottoms != tops:
        raise layer.error(f"takes as many tops as bottoms, got {bottoms} bottoms and {tops} tops", "top")


def _count_text(least: int, most: int | None, what: str) -> str:
    if most == least:
        return f"{least} {what}" + "s" * (least != 1)
    return f"at least {least} {what}s" if most is None else f"{least} to {most} {what}s"


def _check_reshape(layer: Layer, top: Sequence[Blob]) -> None:
    """Refuse a class with pycaffe's forward that has neither a reshape nor a setup that shapes the tops."""
    kind, bare = type(layer), [i for i, blob in enumerate(top) if not blob.shape]
    if bare and kind.forward is not Layer.forward and kind.reshape is Layer.reshape:
        raise layer.error(
            f"the class {kind.__name__} has no reshape, so that top {bare[0]} never gets a shape:"
            f" write reshape(self, bottom, top) with top[{bare[0]}].reshape(...)"
        )


def _loss_weights(layer: Layer, tops: int) -> list[float]:
    given = list(layer.param.loss_weight)
    if given and len(given) != tops:
        raise layer.error(f"{len(given)} loss_weight given for {tops} tops: give one for each, or none", "loss_weight")
    default = [1.0] + [0.0] * (tops - 1) if layer.is_loss and tops else [0.0] * tops
    return given or default


def _put_loss_weights(layer: Layer, top: Sequence[Blob]) -> None:
    """Fill the diffs of loss tops, once per shape, so that values that a caller writes there later stay."""
    for i, (weight, blob) in enumerate(zip(layer.loss_weights, top, strict=True)):
        if weight and layer._weighted.get(i) != blob.shape:
            blob.diff[...] = weight
            layer._weighted[i] = blob.shape


def _loss(weights: Sequence[float], reads: Sequence[Callable[[], Array]]) -> float:
    """Return the weighted sum of all values. reads: for each top a function that gives them, called if its weight is not 0."""
    weighted = zip(weights, reads, strict=True)
    return sum(weight * float(read().sum(dtype=np.float64)) for weight, read in weighted if weight)
