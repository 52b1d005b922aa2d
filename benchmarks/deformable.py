"""Deformable convolutions of nets on images of 600 x 1000, forward and backward, beside torchvision.

Past the last pixels' centres torchvision's is another function: results are compared where no sample lies there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks._report import Row, Table, options
from benchmarks._timing import Run, interleaved
from minicaffe.blob import Blob
from minicaffe.layers import create
from minicaffe.proto import caffe_pb2

LAYERS = ((512, 38, 63, 2, 4), (512, 38, 63, 2, 1), (64, 150, 250, 1, 4), (64, 150, 250, 1, 1))
"""Channels in and out, rows, columns, dilation and padding, deformable groups; the kernels are 3x3."""

REACH = 3
"""Most pixels that an offset moves a tap."""


def main(arguments: Sequence[str] = ()) -> None:
    given = options("deformable", __doc__ or "").parse_args(arguments)
    table = Table("deformable", ("deformable convolutions", "direction", "threads"), ("minicaffe", "torchvision"))
    for layer in LAYERS:
        channels, height, width, dilation, groups = layer
        name = f"3x3, {channels} to {channels}, {height}x{width}, dilation {dilation}, deformable_group {groups}"
        if given.rows in name:
            for direction, runs in contenders(*layer).items():
                table.add(Row((name, direction, str(given.threads)), interleaved(runs, seconds=3)))
    if given.write:
        table.write()


def contenders(channels: int, height: int, width: int, dilation: int, groups: int) -> dict[str, dict[str, Run]]:
    """For each direction what is timed, after a comparison of all results."""
    import torch
    from torchvision.ops import deform_conv2d

    random = np.random.default_rng(0)
    x, dy = random.standard_normal((2, 1, channels, height, width), np.float32)
    offset = random.standard_normal((1, 18 * groups, height, width), np.float32).clip(-REACH, REACH)
    offset = np.floor(8 * offset) / 8 + np.float32(1 / 16)  # at a whole place, where x has a kink, rounding would decide
    rim = REACH + dilation + 1
    dy[:, :, :rim], dy[:, :, -rim:], dy[..., :rim], dy[..., -rim:] = 0, 0, 0, 0
    param = caffe_pb2.LayerParameter(name="layer", type="DeformableConvolution")
    sizes = {"num_output": channels, "kernel_size": [3], "pad": [dilation], "dilation": [dilation], "deformable_group": groups}
    param.deformable_convolution_param.MergeFrom(caffe_pb2.DeformableConvolutionParameter(**sizes, bias_term=False))
    layer, bottom, top = create(param), [Blob(x.shape), Blob(offset.shape)], [Blob(())]
    layer.connect(bottom, top)
    weight = layer.blobs[0].data
    weight[...] = random.normal(scale=0.02, size=weight.shape)
    tensors = [torch.from_numpy(array.copy()).requires_grad_() for array in (x, offset, weight)]
    for blob, array in zip(bottom, (x, offset), strict=True):
        blob.data[...] = array

    def peer() -> torch.Tensor:
        return deform_conv2d(*tensors, padding=dilation, dilation=dilation)

    def without_gradient() -> torch.Tensor:
        with torch.no_grad():
            return peer()

    layer.forward_pass(bottom, top)
    top[0].diff[...] = dy
    layer.backward_pass(top, [True, True], bottom)
    y, given = peer(), torch.from_numpy(dy)
    y.backward(given, retain_graph=True)
    inside = (slice(None), slice(None), slice(rim, -rim), slice(rim, -rim))
    pairs = [(top[0].data[inside], y.detach().numpy()[inside])]
    pairs += [(b.diff, t.grad.numpy()) for b, t in zip([*bottom, layer.blobs[0]], tensors, strict=True) if t.grad is not None]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * float(abs(theirs).max()))
    return {
        "forward": {"minicaffe": lambda: layer.forward_pass(bottom, top), "torchvision": without_gradient},
        "backward": {
            "minicaffe": lambda: layer.backward_pass(top, [True, True], bottom),
            "torchvision": lambda: y.backward(given, retain_graph=True),
        },
    }
