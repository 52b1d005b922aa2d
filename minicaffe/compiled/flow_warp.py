""""""

from __future__ import annotations

from functools import partial
from typing import Any

from minicaffe.blob import Array
from minicaffe.compiled.jit import loop
from minicaffe.kernels import provides
from minicaffe.layers.forks.flownet import flow_warp
from minicaffe.threads import run

find_pixels = loop("T[:,:,::1], int64, uint32[:,::1], T[:,::1]")(flow_warp.find_pixels)
CALLS = {"find_pixels": find_pixels}
warp_rows = loop("T[:,::1], T[:,:,::1], UniTuple(int64, 2), T, T[:,:,::1]", calls=CALLS)(flow_warp.warp_by_definition)
warp_rows_back = loop("T[:,:,::1], T[:,:,::1], UniTuple(int64, 2), T[:,::1]", calls=CALLS)(
    flow_warp.warp_backward_by_definition
)
flow_rows_back = loop("Tuple((T[:,::1], T[:,:,::1])), T[:,:,::1], UniTuple(int64, 2), T[:,:,::1]", calls=CALLS)(
    flow_warp.flow_backward_by_definition
)


@provides(flow_warp.warp, loops=(warp_rows,))
def warp(x: Array, flow: Array, fill: Any, y: Array) -> None:
    """Split the rows of y across the threads."""
    planes = x.reshape(len(x), flow[0].size)
    run(partial(warp_rows, planes, flow, rows, fill, y) for rows in flow_warp.spans(y.shape[1]))


@provides(flow_warp.warp_backward, loops=(warp_rows_back, flow_rows_back))
def warp_backward(x: Array, flow: Array, dy: Array, dx: Array | None, dflow: Array | None) -> None:
    """Split the channels of dx and the rows of dflow across the threads."""
    planes = x.reshape(len(x), flow[0].size)
    if dx is not None:
        to = dx.reshape(planes.shape)
        to[...] = 0
        run(partial(warp_rows_back, dy, flow, channels, to) for channels in flow_warp.spans(len(x)))
    if dflow is not None:
        run(partial(flow_rows_back, (planes, dy), flow, rows, dflow) for rows in flow_warp.spans(x.shape[1]))
