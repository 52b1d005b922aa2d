"""Net: layers connected by blobs, forward and backward. Source: Caffe's net.cpp, and pycaffe's pycaffe.py for the interface.

prototxt -> upgraded -> filtered (phase, level, stage) -> splits inserted -> layers connected in order
         -> shared weights joined -> which layers and bottoms need a gradient decided
"""

from __future__ import annotations

import importlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, NoReturn, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from minicaffe.formats.forks import Choice, fork_named, fork_of_net

from . import limits
from .blob import Arrays, Blob, bump_version, put_numbers
from .blob_memory import BlobMemory
from .cuda.device import current
from .cuda.stream import Stream
from .errors import Error, LayerError, WeightsError, pasted
from .forked import LayoutFromWeights, choice_of
from .formats.skipped import drop_notes, skip
from .formats.source import LayerSource
from .formats.weights import LayerWeights, WeightsFile, read_weights, write_weights
from .hooks import Hooked
from .kernels import compile_loops, count_work, has_little_work
from .layer import Layer
from .layer_list import Node, drop_unasked_gradients, filter_layers, insert_splits, left_out
from .layers import create, settings_or_current
from .layers.data.input import Input
from .layers.shape.alignment import settle_crops
from .mode import TRAIN, Phase, gpu_mode
from .net_arguments import (
    AnyNet,
    net_file_of,
    phase_of,
    sorted_arguments,
    state_applied,
    unknown_of_layer,
    unknown_of_net,
)
from .parameters import Blobs, Layers, LearnableParameters, Params, check_names, names_near, param_names
from .plan import ExecutionPlan
from .process_fork import renewed
from .proto import caffe_pb2
from .pycaffe_net import PycaffeNet, forward_all
from .threads import computing

logger = logging.getLogger("minicaffe.net")

if TYPE_CHECKING:
    from .data.settings import DetectionSettings

Watch = Callable[["Net", Layer, str], None]
"""Called while a net is built, with the net so far, a layer, and the step just done: "created", "setup" or "reshape"."""

Keep = Literal["all", "outputs"]
"""The blobs that keep their data after a forward."""

AUTOMATIC = "(automatic)"
"""The name of a loss top that the prototxt omits."""

RUN_FORWARD = "its backward needs what its forward keeps: run forward first"


@dataclass
class LoadReport:
    """The result of `Net.copy_from`.

    Attributes
    ----------
    file : str
        The weights file.
    loaded : list of str
        Layers that got weights.
    missing : list of str
        Layers with learnable blobs that got none.
    unused : list of str
        The file's other layers.
    """

    file: str
    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)


class Net(PycaffeNet, Hooked):
    """A net ready to run.

    The net can also be built as in old pycaffe: ``Net(file, weights, phase)``.

    Parameters
    ----------
    file : str or path or NetFile or NetParameter
        The prototxt's path, a NetFile from minicaffe.prototxt, or a NetParameter.
    *args
        Up to four of phase, level, stages and weights, in this order; or the legacy weights and phase.
    network_file : str or path or NetFile or NetParameter
        pycaffe's name for `file`. Give one of the two.
    phase : int, default TEST
        TRAIN or TEST.
    level : int, default 0
        The level that the layers' rules compare with min_level and max_level.
    stages : sequence of str, optional
        Stages for the layers' rules, in addition to the prototxt's.
    weights : str or path, optional
        A weights file to load, as by `copy_from`.
    dtype : dtype, default float32
        float32, or float64 for gradient checks.
    watch : callable, optional
        Called as ``watch(net, layer, step)`` while the net is built.
        The steps of each layer are "created", "setup" and "reshape".
    keep : {"all", "outputs"}, default "all"
        Blobs that keep their data after a forward.
        With "outputs", the others are freed when their last reader has run, and there is no backward.
    settings : DetectionSettings, optional
        The detection settings of the net (minicaffe.settings). Default: the current ones.
    strict : bool, optional
        By default, the net is refused if a field that minicaffe lacks may change the numbers.
        With False, the net ignores such fields: each gives a PrototxtWarning and is listed in `skipped`.
    fork : str, optional
        The fork for layers that differ between forks, such as "pspnet" or "hszhao/PSPNet".
        It applies if neither fields nor weights decide.
        By default, layers that only one family of forks has may decide.

    Attributes
    ----------
    name : str
        The net's name in the prototxt.
    file : str
        The prototxt's path; ``<NetParameter>`` for a NetParameter.
    phase : Phase
        TRAIN or TEST.
    dtype : numpy.dtype
        The type of all blobs.
    settings : DetectionSettings
        The detection settings of the net.
    fork : str
        The name of the given fork, or "".
    layers : list of Layer
        The layers in order, including inserted Split layers.
    layer_dict : ordered dict of str to Layer
        The layers by name.
    nodes : list of Node
        Each layer with its blobs, in order.
    blobs : ordered dict of str to Blob
        The blobs by name.
    params : ordered dict of str to list of Blob
        The learnable blobs of each layer that has some, by layer name.
    inputs, outputs : list of str
        Names of the input blobs, and of the blobs that no layer reads.
    top_names, bottom_names : ordered dict of str to list of str
        Names of each layer's tops and bottoms, by layer name.
    blob_loss_weights : ordered dict of str to float
        The loss weight of each top, by blob name.
    param : NetParameter
        The net as built: filtered, with Split layers.
    skipped : list of SkippedField
        Fields that were ignored although they may change the numbers.
    weights_files : list of str
        Files that the weights were loaded from, in order.
    lock : RLock
        If several threads use one net, a thread holds it while it runs the net and reads its blobs.

    Raises
    ------
    PrototxtError
        The prototxt cannot be read, or has an unknown field that may change the numbers.
    LayerError
        A layer cannot be set up, or has an unknown field that may change the numbers.
    WeightsError
        The weights cannot be read, or do not fit the net.
    SettingsError
        `settings` is not DetectionSettings.
    Error
        dtype, phase, keep or fork has another value.

    Notes
    -----
    The interface is pycaffe's. pycaffe_net.py has the rest of it, with the old names.
    Source: Caffe's net.cpp and pycaffe's pycaffe.py.
    """

    def __init__(  # noqa: PLR0913 - public, by keyword
        self,
        file: AnyNet | None = None,
        *args: Any,
        network_file: AnyNet | None = None,
        phase: int | None = None,
        level: int = 0,
        stages: Sequence[str] | None = None,
        weights: str | PathLike[str] | None = None,
        dtype: DTypeLike = np.float32,
        watch: Watch | None = None,
        keep: Keep = "all",
        settings: DetectionSettings | None = None,
        strict: bool | None = None,
        fork: str = "",
    ) -> None:
        super().__init__()
        phase, level, stages, weights = sorted_arguments(args, phase, level, stages, weights)
        net_file = net_file_of(file, network_file)
        self.phase = phase_of(phase)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64):
            raise Error(f"a net's dtype is float32 or float64, got {self.dtype}")
        if keep not in ("all", "outputs"):
            raise Error(f'keep is "all" or "outputs", got {keep!r}')
        self.settings: DetectionSettings = settings_or_current(settings)
        self.fork = fork_named(fork)
        self.file = net_file.file
        self.name = net_file.param.name
        self.layers: list[Layer] = []
        self.blobs = Blobs()
        self.inputs: list[str] = []
        self.top_names: OrderedDict[str, list[str]] = OrderedDict()
        self.bottom_names: OrderedDict[str, list[str]] = OrderedDict()
        self.blob_loss_weights: OrderedDict[str, float] = OrderedDict()
        self.nodes: list[Node] = []
        self._with_weights: dict[str, Layer] = {}
        self._has_namesakes = False
        self._stream: Stream | None = None
        self._bytes = 0
        self.lock = renewed(RLock())
        self._has_run = self._loops_asked_for = False
        self.weights_files: list[str] = []
        self.skipped = unknown_of_net(net_file, strict)

        self.param = state_applied(net_file.param, self.phase, level, stages or [])
        drop_notes(self.param)
        self._forced = self.param.force_backward
        # a NetParameter has no sources
        sources: list[LayerSource | None] = list(net_file.sources) or [None] * len(self.param.layer)
        self._fork = fork_of_net(self.fork, self.param.layer)
        whole = list(zip(self.param.layer, sources, strict=True))
        layers = insert_splits(filter_layers(whole, self.param.state), partial(left_out, whole, self.param.state))
        unread: dict[str, None] = {}
        for param, source in layers:
            self._add_layer(param, source, unread, watch, strict)
        settle_crops(self.nodes)
        self.outputs = sorted(unread)  # Caffe's std::set sorts by name
        self.layer_dict = Layers((layer.name, layer) for layer in self.layers)
        self._decide_gradients()
        self.plan = ExecutionPlan(self.nodes, self._memory(keep))
        self._list_layers()
        self._unrun = set(range(len(self.layers)))
        skip(self.skipped)
        logger.debug("%s: %d layers set up for %s", self.file, len(self.layers), self.phase)
        for name, choice in self.forks.items():
            logger.debug('layer "%s": %s', name, choice)
        if weights is not None:
            self.copy_from(weights)

    # Construction.

    def _list_layers(self) -> None:
        """Put the layers in their present state into params and param."""
        self.params = Params((layer.name, layer.blobs) for layer in self.layers if layer.blobs)
        del self.param.layer[:]  # as in Caffe, save() writes the net as built: filtered and with splits
        self.param.layer.extend(layer.param for layer in self.layers)

    def _add_layer(
        self,
        param: caffe_pb2.LayerParameter,
        source: LayerSource | None,
        unread: dict[str, None],
        watch: Watch | None,
        strict: bool | None,
    ) -> None:
        phase = Phase(param.phase) if param.HasField("phase") else self.phase
        layer = create(param, phase=phase, dtype=self.dtype, source=source, settings=self.settings, fork=self._fork)
        self.skipped += unknown_of_layer(layer, strict)
        if watch:
            watch(self, layer, "created")
        if param.propagate_down and len(param.propagate_down) != len(param.bottom):
            raise layer.error(
                f"{len(param.propagate_down)} propagate_down given for {len(param.bottom)} bottoms: one for each, or none",
                "propagate_down",
            )
        node = self._append_node(layer, unread)
        layer.connect(node.bottoms, node.tops, partial(watch, self, layer, "setup") if watch else None)
        self.layers.append(layer)
        given = set(node.bottoms)  # an in-place top needs no memory of its own
        self._check_size(layer, [blob for blob in node.tops if blob not in given])
        if watch:
            watch(self, layer, "reshape")
        for name, weight in zip(node.top_names, layer.loss_weights, strict=True):
            self.blob_loss_weights[name] = weight
        self._check_new_name(layer)

    def _decide_gradients(self) -> None:
        """Collect the learnable blobs, join the shared ones, and decide which layers and bottoms need a gradient."""
        self._learnable = LearnableParameters()
        blob_needs: dict[str, bool] = {}
        for node in self.nodes:
            # A given propagate_down decides alone: true asks for a gradient even if nothing below learns.
            node.bottom_needs = [bool(p) for p in node.layer.param.propagate_down] or [blob_needs[b] for b in node.bottom_names]
            # first, because add_layer must run
            node.needs_backward = self._learnable.add_layer(node.layer) or any(node.bottom_needs)
            for name in node.top_names:
                # in place, a gradient needed below is still needed
                blob_needs[name] = blob_needs.get(name, False) or node.needs_backward
        self._learnable.share()
        drop_unasked_gradients(self.nodes)
        for node in self.nodes:
            node.layer.gradient_wanted = node.needs_backward
        if self._forced:
            self.force_backward()

    def take_layouts(self, stored: Iterable[tuple[str, Sequence[Sequence[int]]]]) -> None:
        """Let layers adopt the layout of stored blobs, then decide again which blobs learn.

        Parameters
        ----------
        stored : iterable of (str, sequence of shapes)
            Layer names, each with the shapes of the layer's stored blobs.

        Raises
        ------
        WeightsError
            A layer cannot take blobs of these shapes.
        """
        named = self._layers_loaded(last=False)
        found = [(named[name], shapes) for name, shapes in stored if name in named]
        changed = [layer for layer, shapes in found if isinstance(layer, LayoutFromWeights) and layer.adopt_layout(shapes)]
        for layer in changed:
            self._check_new_name(layer)
        if changed:
            self._decide_gradients()
            self.plan = ExecutionPlan(self.nodes, self.plan.memory)
            self._list_layers()

    def _append_node(self, layer: Layer, unread: dict[str, None]) -> Node:
        """Add the layer's node, and the blobs of tops that are not in place."""
        param = layer.param
        names = list(param.bottom)
        bottoms = [self.blobs[name] for name in names]
        for name in names:
            unread.pop(name, None)
        self.bottom_names[layer.name] = names
        top_names, tops = self._make_tops(layer, unread)
        self.top_names[layer.name] = top_names
        self.nodes.append(Node(layer, bottoms, tops, list(names), list(top_names)))
        return self.nodes[-1]

    def _make_tops(self, layer: Layer, unread: dict[str, None]) -> tuple[list[str], list[Blob]]:
        param = layer.param
        names, earlier = list(param.top), set[str]()
        for j, name in enumerate(names):
            # as in Caffe, in place means the bottom with the same index
            in_place = j < len(param.bottom) and param.bottom[j] == name
            # as in pycaffe, Python layers decide for themselves
            if in_place and not layer.in_place and type(layer).forward is Layer.forward:
                raise layer.error(
                    f'cannot run in place: bottom and top are both "{name}"; give the top another name', f"top[{j}]"
                )
            if not in_place:
                self._check_new_top(layer, name, j, earlier)
                self.blobs[name] = Blob((), self.dtype)
            earlier.add(name)
            unread[name] = None
        if isinstance(layer, Input):
            self.inputs.extend(names)
        tops = [self.blobs[name] for name in names]
        if not param.bottom:  # such tops are filled on the host
            for top in tops:
                top.pin()
        if layer.auto_top:
            wanted = layer.num_top if isinstance(layer.num_top, int) else layer.num_top[0]
            while len(tops) < max(wanted, 1):
                names.append(AUTOMATIC)
                tops.append(Blob((), self.dtype))
                self.blobs[AUTOMATIC] = tops[-1]  # one name, so only the last one; the nodes have all
        return names, tops

    def _check_size(self, layer: Layer, tops: Sequence[Blob]) -> None:
        """Raise LayerError if the blobs so far need more than limits.bytes, allocated or not."""
        self._bytes += sum(blob.count for blob in [*tops, *layer.blobs]) * self.dtype.itemsize
        layer.guard(lambda: limits.check("with it the net", self._bytes, "bytes"))

    def _check_new_top(self, layer: Layer, name: str, j: int, earlier: Collection[str]) -> None:
        if name in earlier:
            raise layer.error(f'top "{name}" is named twice', f"top[{j}]")
        if name in self.blobs:
            first = next(other for other in self.layers if name in other.param.top)
            place = f" ({first.source.at('top')})" if first.source else ""
            raise layer.error(f'top "{name}" is already produced by layer "{first.name}"{place}', f"top[{j}]")

    def _check_new_name(self, layer: Layer) -> None:
        """Warn of a second layer with weights of its own under one name: as in Caffe, stored weights are found by name."""
        if layer.blobs and (other := self._with_weights.setdefault(layer.name, layer)) is not layer:
            if param_names(layer) == param_names(other) and all(param_names(layer)):
                return
            self._has_namesakes = True
            place = f" ({other.source.at('name')})" if other.source else ""
            layer.warn(
                f"another layer with weights has this name{place}: as in Caffe, weights are loaded into the first of them, from"
                " an .h5 into the last; the others keep their fillers' values; rename one of them",
                "name",
            )

    def _memory(self, keep: Keep) -> BlobMemory | None:
        """Return the memory that frees the inner blobs with keep="outputs". Layers then keep nothing for backward."""
        if keep == "all":
            return None
        for layer in self.layers:
            layer.forward_only = True
        return BlobMemory(self.nodes, [*self.inputs, *self.outputs, AUTOMATIC])

    # Running.

    def force_backward(self) -> None:
        """Let backward compute every gradient, also in the inputs, as with `force_backward: true` in the prototxt."""
        self._forced = True
        for node in self.nodes:
            layer, node.needs_backward = node.layer, True
            layer.gradient_wanted = True
            node.bottom_needs = [n or b not in layer.index_bottoms for b, n in enumerate(node.bottom_needs)]
            layer.param_propagate_down = [True] * len(layer.blobs)
        bump_version()

    def forward(
        self, blobs: Sequence[str] | None = None, start: str | None = None, end: str | None = None, **inputs: ArrayLike
    ) -> Arrays:
        """Run the layers from start to end, and return the outputs.

        Parameters
        ----------
        blobs : sequence of str, optional
            Names of blobs to return in addition to the outputs.
        start : str, optional
            The first layer to run. Default: the net's first layer.
        end : str, optional
            The last layer to run; its tops are returned instead of the outputs. Default: the net's last layer.
        **inputs : array_like
            Arrays of the input blobs' shapes, by blob name: for all inputs or for none. They are copied.

        Returns
        -------
        dict of str to ndarray
            The data of the outputs and of `blobs`, by name. The arrays are views: the next run overwrites them.

        Raises
        ------
        Error
            An input is missing, unknown or of the wrong shape, a layer is unknown, or another thread runs the net.
        LayerError
            A layer cannot run on its bottoms.
        """
        first = 0 if start is None else self.index_of(start)
        last = len(self.layers) - 1 if end is None else self.index_of(end)
        if inputs:
            check_names(inputs, self.inputs, "inputs", "the net's inputs")
            for name, array in inputs.items():
                put_numbers(name, self.blobs[name].data, array)
        names = [*(self.top_names[end] if end else self.outputs), *(blobs or [])]
        if self.plan.memory:
            self.plan.memory.asked_for = names
        self.forward_from_to(first, last)
        return {name: self.blobs[name].data for name in dict.fromkeys(names)}

    def backward(
        self, diffs: Sequence[str] | None = None, start: str | None = None, end: str | None = None, **top_diffs: ArrayLike
    ) -> Arrays:
        """Run backward from layer start down to layer end, and return the inputs' gradients.

        Parameters
        ----------
        diffs : sequence of str, optional
            Names of blobs whose diffs to return in addition.
        start : str, optional
            The first layer to run, nearest to the loss. Default: the net's last layer.
        end : str, optional
            The last layer to run; its bottoms' diffs are returned instead of the inputs'. Default: the net's first layer.
        **top_diffs : array_like
            Diffs by blob name: for all of the net's outputs or for none. With `start`, for the tops of that layer.

        Returns
        -------
        dict of str to ndarray
            The diffs of the inputs and of `diffs`, by name. The arrays are views: the next run overwrites them.

        Raises
        ------
        Error
            A diff is missing, unknown or of the wrong shape, a layer is unknown, or the net has keep="outputs".
        LayerError
            A layer needs data that its forward keeps, and has not run forward.
        """
        first = len(self.layers) - 1 if start is None else self.index_of(start)
        last = 0 if end is None else self.index_of(end)
        if top_diffs:
            wanted = self.top_names[start] if start else self.outputs
            check_names(top_diffs, sorted(wanted), "top diffs", "the outputs")
            for name, array in top_diffs.items():
                put_numbers(name, self.blobs[name].diff, array)
        self.backward_from_to(first, last)
        names = [*(self.bottom_names[end] if end else self.inputs), *(diffs or [])]
        return {name: self.blobs[name].diff for name in dict.fromkeys(names)}

    def forward_all(self, blobs: Sequence[str] | None = None, **inputs: ArrayLike) -> Arrays:
        """Run forward on any number of items, in batches of the net's size.

        Parameters
        ----------
        blobs : sequence of str, optional
            Names of blobs to return in addition to the outputs.
        **inputs : array_like
            Arrays (items, ...) for all inputs, by blob name.

        Returns
        -------
        dict of str to ndarray
            The data (items, ...) of the outputs and of `blobs`, by name, as copies joined over the batches.

        Raises
        ------
        Error
            An input is missing or not an array of numbers, or the inputs differ in their number of items.
        """
        return forward_all(self, blobs, inputs)

    def forward_backward(self) -> float:
        """Run forward and backward once over all layers.

        Returns
        -------
        float
            The loss.
        """
        loss = self.forward_from_to(0, len(self.layers) - 1)
        self.backward_from_to(len(self.layers) - 1, 0)
        return loss

    def forward_from_to(self, start: int, end: int) -> float:
        """Run forward from one layer index to another, as Caffe's ForwardFromTo.

        Parameters
        ----------
        start, end : int
            Indices of the first and the last layer to run, both included.

        Returns
        -------
        float
            The loss of these layers.
        """
        losses: list[Callable[[], float]] = []
        if not self._loops_asked_for and not gpu_mode():
            if self._has_run or not has_little_work():
                # with hooks, compile first: a timed layer must not wait
                self.compile_loops(ahead=not self.forward_is_watched)
            self._has_run = True
        self._unrun.difference_update(range(start, end + 1))
        with self.running():
            begun = self.plan.begin(start, end, self.forward_is_watched)
            if begun <= end:
                with computing():
                    for i in self.plan.steps(begun, end, self.forward_is_watched):
                        node = self.nodes[i]
                        self._call("before_forward", i)
                        reshaped = partial(self._call, "after_reshape", i)
                        node.layer.reshape_and_forward(node.bottoms, node.tops, reshaped)
                        if any(node.layer.loss_weights):
                            losses.append(node.layer.loss_later(node.tops))
                        self._call("after_forward", i)
        return sum((loss() for loss in losses), 0.0)

    def compile_loops(self, ahead: bool = False) -> None:
        """Compile the loops that the net's passes run, as the first forward does.

        Parameters
        ----------
        ahead : bool, default False
            Compile in the background.
        """
        backward = self.phase == TRAIN
        if not self._loops_asked_for:
            self._loops_asked_for = True
            count_work(self.nodes, backward)
        compile_loops(self.layers, backward, ahead)

    def backward_from_to(self, start: int, end: int) -> None:
        """Run backward from one layer index down to another, as Caffe's BackwardFromTo.

        Layers that have not run forward take the blobs as they are.

        Parameters
        ----------
        start, end : int
            Indices of the first and the last layer to run, both included, with start >= end.

        Raises
        ------
        Error
            The net has keep="outputs", or another thread runs the net.
        LayerError
            A layer needs data that its forward keeps, and has not run forward.
        """
        if self.plan.memory:
            raise Error('backward reads blobs that keep="outputs" has freed: make the net with keep="all"')
        with self.running(), computing():
            for i in self.plan.backward_steps(start, end, gpu_mode() or self.backward_is_watched):
                node = self.nodes[i]
                self._call("before_backward", i)
                if node.needs_backward:
                    self._backward_of(i)
                self._call("after_backward", i)

    def _backward_of(self, i: int) -> None:
        node = self.nodes[i]
        if i in self._unrun and node.bottoms and gpu_mode():  # kernels would read memory that forward has not written
            raise node.layer.error(RUN_FORWARD)
        try:
            node.layer.backward_pass(node.tops, node.bottom_needs, node.bottoms)
        except Exception as error:
            if i not in self._unrun or isinstance(error, Error):
                raise
            raise node.layer.error(f"{RUN_FORWARD} ({type(error).__name__}: {error})") from error

    _forward, _backward = forward_from_to, backward_from_to
    """pycaffe's names."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Hold the net during a pass.

        In GPU mode kernels run on the net's own stream, and the end of the block waits for it.

        Yields
        ------
        None
            The block runs while this thread holds the net.

        Raises
        ------
        Error
            Another thread runs the net.
        """
        if not self.lock.acquire(blocking=False):  # reentrant: a thread that holds net.lock may run the net
            raise Error(
                f'net "{self.name}" is running in another thread: give each thread its own net (share_with shares the'
                " weights), or hold net.lock while a thread runs it and reads its blobs"
            )
        try:
            with self._on_stream():
                yield
        finally:
            self.lock.release()

    def _on_stream(self) -> AbstractContextManager[None]:
        if not gpu_mode():
            return nullcontext()
        gpu = current()
        if self._stream is None or self._stream.device is not gpu:
            self._stream = Stream(gpu)
        return gpu.running(self._stream)

    def reshape(self) -> None:
        """Propagate the input blobs' shapes through all layers, as forward also does."""
        for node in self.nodes:
            node.layer.reshape_pass(node.bottoms, node.tops)

    # Parameters.

    @property
    def learnable_params(self) -> list[Blob]:
        """Every learnable blob once, a shared one with its owner."""
        return self._learnable.blobs

    @property
    def params_lr(self) -> list[float]:
        """The lr_mult of each of learnable_params."""
        return self._learnable.lr_mult

    @property
    def params_weight_decay(self) -> list[float]:
        """The decay_mult of each of learnable_params."""
        return self._learnable.decay_mult

    def clear_param_diffs(self) -> None:
        """Zero the diffs of all learnable blobs."""
        for blob in self.learnable_params:
            blob.zero_diff()

    def copy_from(self, weights: str | PathLike[str] | WeightsFile) -> LoadReport:
        """Load weights by layer name.

        Layers that the file lacks keep their values. The report lists them, unless earlier layers own all their blobs.

        Parameters
        ----------
        weights : str or path or WeightsFile
            A .caffemodel of any version, a .caffemodel.h5, .safetensors or .npz file.

        Returns
        -------
        LoadReport
            Layers that got weights, layers that got none, and the file's unused layers.

        Raises
        ------
        WeightsError
            The file cannot be read, or a layer's blobs differ in number or shape.
        """
        file = weights if isinstance(weights, WeightsFile) else read_weights(weights)
        report = LoadReport(str(file.path))
        self.weights_files.append(report.file)
        self.take_layouts(file.shapes())
        named, loaded = self._layers_loaded(last=report.file.endswith(".h5")), set[int]()
        for stored in file.layers:
            layer = named.get(stored.name)
            if layer is not None and layer.blobs and stored.blobs:
                self._load_layer(layer, stored, report.file)
                report.loaded.append(stored.name)
                loaded.add(id(layer))
            elif stored.blobs:
                report.unused.append(stored.name)
        for layer in filter(lambda layer: layer.blobs, self.layers):
            shared = all(self._learnable.is_shared(layer, i) for i in range(len(layer.blobs)))
            if id(layer) not in loaded and not shared:
                report.missing.append(layer.name)
        logger.debug("%s: the weights of %d layers, and of %d others", report.file, len(report.loaded), len(report.unused))
        return report

    def _layers_loaded(self, *, last: bool) -> dict[str, Layer]:
        """Return the layer that takes stored weights, by name.

        It is the first of the name, or with `last`, as in Caffe's reader of HDF5, the last. A layer with blobs goes before one
        without.
        """
        named: dict[str, Layer] = {}
        for layer in reversed(self.layers) if last else self.layers:
            if layer.name not in named or (layer.blobs and not named[layer.name].blobs):
                named[layer.name] = layer
        return named

    def _load_layer(self, layer: Layer, stored: LayerWeights, file: str) -> None:
        kind = f'{layer.type} layer "{layer.name}"'
        given_blobs = [*stored.blobs, *[None] * (len(layer.blobs) - len(stored.blobs))]
        lacking = [i for i, given in enumerate(given_blobs) if given is None and not self._learnable.is_shared(layer, i)]
        if lacking or len(given_blobs) > len(layer.blobs):
            count = sum(given is not None for given in stored.blobs)
            raise WeightsError(f"{kind} has {len(layer.blobs)} blobs, but {file} stores {count} for it")
        # Check all shapes before writing any value.
        for i, (blob, given) in enumerate(zip(layer.blobs, stored.blobs, strict=False)):
            if given is not None and not given.fits(blob.shape) and not _takes_part(layer, i, given.shape):
                place = f" ({layer.source.at()})" if layer.source else ""
                shapes = f"blob {i} has shape {blob.shape}, but {file} stores {tuple(given.shape)}"
                raise WeightsError(f"{kind}: {shapes}{place}; {_other_shape_advice(layer, blob.shape, given.shape)}")
        for blob, given in zip(layer.blobs, stored.blobs, strict=False):
            if given is not None and given.fits(blob.shape):
                given.copy_to(blob.data)
            elif given is not None:
                blob.data.reshape(-1)[...] = given.array.reshape(-1)[: blob.count]

    def share_with(self, other: Net) -> None:
        """Share another net's weights with this net, by layer name.

        Test nets share their train net's weights in this way.

        Parameters
        ----------
        other : Net
            The net that owns the weights.

        Raises
        ------
        LayerError
            A layer's weights have other shapes in the other net.
        """
        kept = [layer for layer in other.layers if layer.blobs or choice_of(layer)]
        self.take_layouts((layer.name, [blob.shape for blob in layer.blobs]) for layer in kept)
        own = _namesakes(self.layers)
        for name, layers in _namesakes(other.layers).items():
            for mine, theirs in zip(own.get(name, ()), layers, strict=False):
                shapes, given = [b.shape for b in mine.blobs], [b.shape for b in theirs.blobs]
                if shapes != given:
                    raise LayerError(f'layer "{name}": weights {shapes} cannot share with {given}')
                for blob, source in zip(mine.blobs, theirs.blobs, strict=True):
                    blob.share_data(source)  # not the diff: each net computes its own gradients

    def save(self, path: str | PathLike[str], *, diffs: bool = False) -> None:
        """Write the net with its weights as a .caffemodel.

        Parameters
        ----------
        path : str or path
            The file. If it ends in .h5, .safetensors or .npz, only the weights are written, in this format.
        diffs : bool, default False
            Write the weights' diffs too. .safetensors and .npz take none.

        Raises
        ------
        WeightsError
            The format cannot store diffs, or two layers of one name.
        Error
            The file cannot be written.
        """
        each = [layer.blobs for layer in self.layers] if self._has_namesakes else ()
        write_weights(path, self.param, self.params, diffs=diffs, each=each)

    # Lookups.

    @property
    def forks(self) -> dict[str, Choice]:
        """The fork's version of each layer whose type differs between forks, with its reason, by layer name.

        Layers of other types are missing, and so are layers that the weights will decide.
        """
        return {layer.name: choice for layer in self.layers if (choice := choice_of(layer))}

    def index_of(self, layer: str) -> int:
        """Return the index of the first layer of this name.

        Parameters
        ----------
        layer : str
            The layer's name.

        Returns
        -------
        int
            The index in net.layers and net.nodes.

        Raises
        ------
        Error
            The net has no layer of this name.
        """
        for i, node in enumerate(self.nodes):
            if node.layer.name == layer:
                return i
        raise Error(f'the net has no layer "{layer}"{names_near(layer, self.layer_dict)}')

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Raise Error for pickle and copy."""
        raise Error("a net cannot be pickled or copied: make another of net.param, and share_with or save gives it the weights")

    def __repr__(self) -> str:
        # absent while the net is built
        ends = f", inputs {self.inputs}, outputs {self.outputs}" if hasattr(self, "outputs") else ""
        return f'Net "{self.name}", {self.phase}: {len(self.layers)} layers{ends}'

    def _repr_html_(self) -> str:
        """Return HTML for a notebook. The module is imported by name, because the engine must not import tracing."""
        return str(importlib.import_module("minicaffe.tracing.representations").net_html(self))


def _takes_part(layer: Layer, i: int, shape: Sequence[int]) -> bool:
    return isinstance(layer, LayoutFromWeights) and layer.takes_part_of(i, shape)


def _other_shape_advice(layer: Layer, shape: Sequence[int], stored: Sequence[int]) -> str:
    """Return advice on stored weights of another shape. For another number of outputs it adds how to change the classes."""
    advice = "rename the layer, and it keeps its filler's values"
    if not layer.linear or tuple(shape[1:]) != tuple(stored[-len(shape) :][1:]):
        return advice
    file = layer.source.place.file if layer.source else "<text>"
    net = "NET" if file == "<text>" else pasted(file, path=True)
    retarget = f"minicaffe retarget {net} --classes N --out FILE"
    return f"{advice}; `{retarget}` renames all such layers of a detector that has the file's classes"


def _namesakes(layers: Iterable[Layer]) -> dict[str, list[Layer]]:
    """Return the layers with weights, by name, in order."""
    named: dict[str, list[Layer]] = {}
    for layer in layers:
        if layer.blobs:
            named.setdefault(layer.name, []).append(layer)
    return named
