"""ROIPooling's gradient by a compiled loop."""

from __future__ import annotations

from functools import partial

from minicaffe.blob import Array
from minicaffe.compiled.channel_blocks import read_only
from minicaffe.compiled.jit import loop
from minicaffe.kernels import provides
from minicaffe.layers.roi import roi_bin_maxima
from minicaffe.layers.roi.roi_geometry import Ints
from minicaffe.threads import parts, run

add_channels = loop("Array(T, 3, 'C', True), int64[::1], Array(int32, 3, 'C', True), T[:,:,::1], int64, int64")(
    roi_bin_maxima.backward_by_definition
)


@provides(roi_bin_maxima.add_at_maxima, loops=(add_channels,))
def add_at_maxima(dy: Array, images: Ints, argmax: Array, dx: Array) -> None:
    """Split the channels across the threads."""
    if not argmax.size:
        roi_bin_maxima.add_at_maxima.by_numpy(dy, images, argmax, dx)
        return
    count, channels, height, width = dx.shape
    given = read_only(dy.reshape(len(dy), channels, -1)), images, read_only(argmax.reshape(len(dy), channels, -1))

    def add(block: slice) -> None:
        dx[:, block] = 0
        add_channels(*given, dx.reshape(count, channels, height * width), block.start, block.stop)

    run(partial(add, block) for block in parts(channels, each=4))
