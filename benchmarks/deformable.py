"""Deformable convolutions of nets on images of 600 x 1000, forward and backward, beside torchvision.

Past the last pixels' centres torchvision's is another function: results are compared where no sample lies there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._contenders import both, leave_out, same
from benchmarks._report import OURS, Row, Table, options
from benchmarks._smoke import smoking, usual
from benchmarks._timing import Run, interleaved
from minicaffe import get_num_threads
from minicaffe.blob import Blob
from minicaffe.layers import create
from minicaffe.proto import caffe_pb2

Array = NDArray[Any]

LAYERS = usual(((512, 38, 63, 2, 4), (512, 38, 63, 2, 1), (64, 150, 250, 1, 4), (64, 150, 250, 1, 1)), ((8, 19, 21, 2, 4),))
"""Channels in and out, rows, columns, dilation and padding, deformable groups; the kernels are 3x3."""

REACH = 3
"""Most pixels that an offset moves a tap."""


def main(arguments: Sequence[str] = ()) -> None:
    given = options("deformable", __doc__ or "").parse_args(arguments)
    table = Table("deformable", ("deformable convolutions", "direction", "threads"), (*OURS, "torchvision"))
    for layer in LAYERS:
        channels, height, width, dilation, groups = layer
        name = f"3x3, {channels} to {channels}, {height}x{width}, dilation {dilation}, deformable_group {groups}"
        if given.rows in name:
            for direction, runs in contenders(*layer).items():
                table.add(Row((name, direction, str(given.threads)), interleaved(runs, seconds=3)))
    if given.write:
        table.write()


def contenders(channels: int, height: int, width: int, dilation: int, groups: int) -> dict[str, dict[str, Run]]:
    """Return the timed functions of each direction, after a comparison of all results."""
    random = np.random.default_rng(0)
    x, dy = random.standard_normal((2, 1, channels, height, width), np.float32)
    offset = random.standard_normal((1, 18 * groups, height, width), np.float32).clip(-REACH, REACH)
    offset = np.floor(8 * offset) / 8 + np.float32(1 / 16)  # not at whole places, where x has a kink and rounding decides
    rim = REACH + dilation + 1
    dy[:, :, :rim], dy[:, :, -rim:], dy[..., :rim], dy[..., -rim:] = 0, 0, 0, 0
    weight = random.normal(scale=0.02, size=(channels, channels, 3, 3)).astype(np.float32)
    arrays = {"x": x, "offset": offset, "weight": weight}

    def make() -> dict[str, Run]:
        return ours(arrays, dy, dilation, groups)

    runs = both(make)
    inside = (slice(None), slice(None), slice(rim, -rim), slice(rim, -rim))
    results = {name: run() for name, run in runs.pop("results").items()}
    if not smoking():
        try:
            found, peers = torchvision(arrays, dy, dilation)
        except ImportError as error:
            leave_out("torchvision", error)
        else:
            results["torchvision"] = found
            for direction, run in peers.items():
                runs[direction]["torchvision"] = run
    expected = results.popitem()[1]
    for name, arrays in results.items():
        for what, y in arrays.items():
            part = inside if what == "y" else ()
            same(f"{what}: {name}", y[part], expected[what][part], 1e-4)
    return runs


def ours(arrays: Mapping[str, Array], dy: Array, dilation: int, groups: int) -> dict[str, Run]:
    """Return the layer's forward and backward, and their results."""
    channels = dy.shape[1]
    param = caffe_pb2.LayerParameter(name="layer", type="DeformableConvolution")
    sizes = {"num_output": channels, "kernel_size": [3], "pad": [dilation], "dilation": [dilation], "deformable_group": groups}
    param.deformable_convolution_param.MergeFrom(caffe_pb2.DeformableConvolutionParameter(**sizes, bias_term=False))
    x, offset, weight = arrays.values()
    layer, bottom, top = create(param), [Blob(x.shape), Blob(offset.shape)], [Blob(())]
    layer.connect(bottom, top)
    for blob, array in zip([*bottom, *layer.blobs], (x, offset, weight), strict=True):
        blob.data[...] = array

    def forward() -> None:
        layer.forward_pass(bottom, top)

    def backward() -> None:
        layer.backward_pass(top, [True, True], bottom)

    forward()
    top[0].diff[...] = dy
    backward()
    diffs = (blob.diff.copy() for blob in [*bottom, *layer.blobs])
    results = {"y": top[0].data.copy()} | dict(zip(arrays, diffs, strict=True))
    return {"forward": forward, "backward": backward, "results": lambda: results}


def torchvision(arrays: Mapping[str, Array], dy: Array, dilation: int) -> tuple[dict[str, Array], dict[str, Run]]:
    """Return the results of torchvision's function, and its forward and backward."""
    import torch
    from torchvision.ops import deform_conv2d

    torch.set_num_threads(get_num_threads())
    tensors = {name: torch.from_numpy(array.copy()).requires_grad_() for name, array in arrays.items()}

    def run() -> torch.Tensor:
        return deform_conv2d(*tensors.values(), padding=dilation, dilation=dilation)

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return run()

    y, given = run(), torch.from_numpy(dy)

    def backward() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(y, list(tensors.values()), given, retain_graph=True)

    results = {"y": y.detach().numpy()} | {name: t.numpy() for name, t in zip(tensors, backward(), strict=True)}
    return results, {"forward": forward, "backward": backward}
