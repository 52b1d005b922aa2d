"""Pooling: the maximum, the mean or a random pixel of every window of a map.

    PH = ceil((H + 2 pad - kernel) / stride) + 1 (floor with round_mode: FLOOR or ceil_mode: false), less 1 if the last window
    would start past H + pad - 1 and either axis is padded; windows are clipped to the map, and AVE divides by their size
    before that, clipped to H + pad. AVE_EXC_PAD, AVE_TF and AVE with avg_include_pad: false divide by their size after it.
With pad_type: 1 PH = ceil(H / stride), with TensorFlow's SAME padding: a kernel of 2 and a stride of 1 keep the size, as
darknet's max pooling in YOLOv3-tiny does. pad_t, pad_b, pad_l and pad_r pad each side by itself.
Source: Caffe's pooling_layer.cpp; stochastic pooling: pooling_layer.cu; AVE_EXC_PAD and AVE_TF: Synopsys' pooling_layer.cpp;
avg_include_pad: Intel's mkldnn_pooling_layer.cpp, which leaves padding out unless it is true.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.cuda.device import launch_blocks
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind, NetFork
from minicaffe.layer import Costs, Layer
from minicaffe.layers.pool.pooling_windows import counts_padding, is_average, read_pads, read_sizes, rounds_down, same_pads
from minicaffe.mode import TRAIN
from minicaffe.proto import caffe_pb2
from minicaffe.reads import Axis, whole
from minicaffe.threads import Scratch, parts, run

from . import pooling_methods as methods
from .pooling_of_axes import PoolingOfAxes
from .pooling_windows import maps_at_once, plane_blocks, pool_axes

Param = caffe_pb2.PoolingParameter
MAX, AVE, STOCHASTIC = Param.MAX, Param.AVE, Param.STOCHASTIC

INTEL = "Intel"

LEAST_BYTES = 1 << 20
"""Least bytes of maps that are worth a thread."""


class Pooling(Forked):
    """Windows of kernel_h x kernel_w pixels, stride_h and stride_w apart, each giving one number.

    bottom: x (N, C, H, W). top: y (N, C, PH, PW); with MAX optionally the mask (N, C, PH, PW), the index h * W + w of
    the first maximum.
    STOCHASTIC draws a pixel in TRAIN, and gives the expectation in TEST.
    pad_type: 1 and pad_t, pad_b, pad_l, pad_r are Synopsys'.
    In a net of Intel's avg_include_pad is false unless given, as in its MKL engines, with a warning where it counts.
    With dilation, axis, or a value of kernel_size, stride or pad for each axis it is another layer, PoolingOfAxes.
    Raises LayerError when kernel, stride or pad are given twice, half or out of range, round_mode and ceil_mode
    contradict each other, or no window fits.
    """

    # Backward finds the argmax from x, so that a forward alone does not look for it.

    type = "Pooling"
    num_bottom = 1
    num_top = (1, 2)
    param_block = ("pooling_param",)
    weight_names = ()
    copies = (0, 0)
    kinds = (Kind("BVLC", ("bvlc",), "AVE counts padding"), Kind(INTEL, ("intel",), "AVE leaves padding out"))

    @classmethod
    def resolve_class(cls, param: caffe_pb2.LayerParameter, fork: NetFork) -> builtins.type[Layer]:
        return PoolingOfAxes if PoolingOfAxes.is_meant(param.pooling_param) else cls

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.pooling_param
        self._read_fork(param)
        self.method = AVE if is_average(param) else param.pool
        self.counts_padding = counts_padding(param)
        self._argmax = Blob((0,), np.int32)  # on the GPU, for backward
        self._chosen = np.empty(0, np.int32)
        if len(top) > 1 and self.method != MAX:
            raise self.error("only MAX pooling has a second top, the mask", "top[1]")
        self.sizes = self._kernel, self._stride, self._pad = read_sizes(self, param)
        self._pads = read_pads(self, param, self._pad)
        self.floor = rounds_down(self, param) or self._pads is None
        if self.method == MAX:
            self.uses_kernels = (methods.max_pool_places,) if len(top) > 1 else (), (methods.max_pool_gradient,)

    def _read_fork(self, param: Param) -> None:
        padded = param.pool == AVE and any((param.pad, param.pad_h, param.pad_w))
        if padded and not param.HasField("avg_include_pad") and self.choose_by_fork() == INTEL:
            param.avg_include_pad = False
            self.warn(
                "the means leave padding out, as in the MKL engines of Intel's Caffe; its engine CAFFE counts it: for that,"
                " write avg_include_pad: true",
                "pooling_param.pool",
            )

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) != 4:
            hint = "for maps of other than two axes write axis: 1, the channels' axis, in pooling_param"
            raise self.error(f"the bottom must have 4 axes (N, C, H, W), its shape is {shape}; {hint}", "bottom[0]")
        param, spatial = self.param.pooling_param, shape[2:]
        kernel = spatial if param.global_pooling else self._kernel  # in each reshape, because the map's size may change
        sizes = zip(spatial, kernel, self._stride, strict=True)
        pads = self._pads or tuple(same_pads(*sizes_of_axis) for sizes_of_axis in sizes)
        self.rows, self.columns = pool_axes(spatial, kernel, self._stride, pads, self.floor, self.counts_padding)
        pooled = (self.rows.pooled, self.columns.pooled)
        if min(pooled) < 1 or min(spatial) < 1:
            raise self.error(
                f"no window of {kernel[0]}x{kernel[1]} fits a map of {spatial[0]}x{spatial[1]} with pad {self._pad_text()}",
                "pooling_param",
            )
        for blob in top:
            blob.reshape(*shape[:2], *pooled)

    def _pad_text(self) -> str:
        return str(self._pad if self.has_even_pads else ((self.rows.pad, self.rows.end), (self.columns.pad, self.columns.end)))

    @property
    def has_even_pads(self) -> bool:
        """Return whether each axis has as much padding after the map as before it, for maps of any size."""
        return self._pads is not None and all(before == after for before, after in self._pads)

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        if self.param.pooling_param.global_pooling:
            return tuple(whole(length) for length in bottom[b].shape[2:])
        axes = self.rows, self.columns
        return tuple(Axis(axis.stride, 1, -axis.pad, axis.kernel - 1 - axis.pad) for axis in axes)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        costs = super().costs(bottom, top, propagate_down)
        if self.method != STOCHASTIC:
            return costs
        saved = 4 * top[0].count if self.phase == TRAIN else 0
        return costs._replace(saved=saved, working=self._working_bytes(bottom, bool(propagate_down and propagate_down[0])))

    def _working_bytes(self, bottom: Sequence[Blob], backward: bool) -> int:
        """Return STOCHASTIC's temporary bytes for blocks of maps: one thread draws, all compute the expectation."""
        rows, columns, size = self.rows, self.columns, self.dtype.itemsize
        maps, pixels, windows = math.prod(bottom[0].shape[:2]), rows.size * columns.size, rows.pooled * columns.pooled
        if self.phase == TRAIN:  # running sums, y, taps, random numbers and thresholds
            return 5 * size * min(maps, maps_at_once(size * pixels)) * windows
        made = pixels + 2 * rows.pooled * columns.size + 3 * windows  # squares, the temporaries of reduce_windows, and sums
        if backward:  # backward makes them again, next to sums and dx
            made += pixels + 2 * windows
        tasks = _tasks(maps, size * pixels)
        return len(tasks) * size * min(-(-maps // len(tasks)), maps_at_once(size * pixels)) * made

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, rows, columns = _planes(bottom[0].data), self.rows, self.columns
        y, *mask = (_planes(blob.data) for blob in top)
        if self.method == STOCHASTIC and self.phase == TRAIN:
            if self._chosen.shape != y.shape:
                self._chosen = np.empty(y.shape, np.int32)  # backward follows the taps that forward drew
            for block in plane_blocks(x):  # one by one, because they draw from one generator
                y[block], self._chosen[block] = methods.stochastic_pool(x[block], rows, columns)
            return

        def pool(block: slice, scratch: Scratch) -> None:
            if self.method == MAX and mask:
                mask[0][block] = methods.max_pool_places(x[block], rows, columns, y[block], scratch)
            elif self.method == MAX:
                methods.max_pool(x[block], rows, columns, y[block], scratch)
            elif self.method == AVE:
                methods.ave_pool(x[block], rows, columns, y[block], scratch)
            else:
                y[block] = methods.weighted_pool(x[block], rows, columns)

        _each_block(x, pool)

    @property
    def drawn(self) -> Array:
        """Return the taps that STOCHASTIC's last forward in TRAIN drew: (N * C, PH, PW), in window_taps' order."""
        return self._chosen

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.method == STOCHASTIC:
            super().forward_gpu(bottom, top)
            return
        x = bottom[0].device_data("read")
        y, *mask = [blob.device_data("write") for blob in top]
        if self.method == MAX:
            self._launch_windows("pooling.max_pool", top[0].count, x, y, mask[0] if mask else 0, 0)
        else:
            self._launch_windows("pooling.ave_pool", top[0].count, x, y)

    def _launch_windows(self, kernel: str, windows: int, x: int, *results: int) -> None:
        """Launch one thread for each window, or 32 if a large map has one window."""
        rows, columns = self.rows, self.columns
        if rows.pooled * columns.pooled == 1 and rows.size * columns.size > 32:
            blocks = -(-windows // 8)  # 8 warps for each block, one window for each warp
            launch_blocks(f"{kernel}_whole", self.dtype, (blocks, 1), (32, 8, 1), windows, x, *self._geometry(), *results)
        else:
            self.launch(kernel, windows, windows, x, *self._geometry(), *results)

    def _geometry(self) -> tuple[int, ...]:
        """Return the kernels' H, W, PH, PW, kernel, stride, pad before and after on both axes, and counts_padding.

        The kernel is at most the padded map.
        """
        r, c = self.rows, self.columns
        # The sum of a place and the kernel must fit an int.
        kernel = min(r.kernel, r.size + r.pad + r.end), min(c.kernel, c.size + c.pad + c.end)
        pads = r.pad, c.pad, r.end, c.end
        return r.size, c.size, r.pooled, c.pooled, *kernel, r.stride, c.stride, *pads, int(self.counts_padding)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        x, dx, dy = _planes(bottom[0].data), _planes(bottom[0].diff), _planes(top[0].diff)
        windows = self.rows, self.columns

        def step(block: slice, scratch: Scratch) -> None:
            if self.method == MAX:
                methods.max_pool_gradient(dy[block], x[block], *windows, dx[block], scratch)
            elif self.method == AVE:
                methods.ave_pool_gradient(dy[block], *windows, dx[block])
            elif self.phase == TRAIN:
                methods.stochastic_pool_gradient(dy[block], self._chosen[block], *windows, dx[block])
            else:
                methods.weighted_pool_gradient(dy[block], x[block], *windows, dx[block])

        _each_block(x, step)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if self.method == STOCHASTIC:
            super().backward_gpu(top, propagate_down, bottom)
        elif propagate_down[0]:
            dy, dx = top[0].device_diff("read"), bottom[0].device_diff("write")
            count, sizes = bottom[0].count, self._geometry()
            if self.method == AVE:
                self.launch("pooling.ave_pool_backward", count, count, dy, *sizes, dx)
                return
            self._argmax.reshape(top[0].shape)
            argmax = self._argmax.device_data("write")
            # 0 for y and mask: only the winners are needed.
            self._launch_windows("pooling.max_pool", top[0].count, bottom[0].device_data("read"), 0, 0, argmax)
            self.launch("pooling.max_pool_backward", count, count, dy, argmax, *sizes, dx)


def _planes(x: Array) -> Array:
    """Return x (N, C, H, W) as maps (N * C, H, W), a view."""
    n, channels, h, w = x.shape
    return x.reshape(n * channels, h, w)


def _each_block(x: Array, step: Callable[[slice, Scratch], None]) -> None:
    """Call step(block, scratch) for all blocks of maps, on all threads."""

    def task(part: slice) -> None:
        scratch = Scratch(x.dtype)
        for block in plane_blocks(x, part):
            step(block, scratch)

    run(partial(task, part) for part in _tasks(len(x), x[:1].nbytes))


def _tasks(maps: int, size: int) -> list[slice]:
    """Return the maps, `size` bytes each, split across threads."""
    return parts(maps, least=-(-LEAST_BYTES // max(1, size)))
