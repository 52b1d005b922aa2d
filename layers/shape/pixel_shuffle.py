"""PixelShuffle: Reshape with Synopsys' pixelshuffler, which moves the channels into a finer map.

    y[n, c, h r + i, w r + j] = x[n, (c r + i) r + j, h, w]        r = pixelshuffler

Source: Shi et al., ESPCN (arXiv:1609.05158); synopsys-caffe's reshape_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.blob import Array, Blob

from .rearranged import Rearranged


class PixelShuffle(Rearranged):
    """Each r x r channels become one map r times as high and as wide. reshape_param's other fields have no effect.

    bottom: x (N, C, H, W). top: y (N, C / r^2, H r, W r). Raises LayerError when x has not four axes, pixelshuffler is below
    1, or its square does not divide C.
    """

    type = "Reshape"
    param_block = ("reshape_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        self.factor = self.param.reshape_param.pixelshuffler
        if self.factor < 1:
            raise self.error(f"pixelshuffler must be > 0, got {self.factor}", "reshape_param.pixelshuffler")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape, r = bottom[0].shape, self.factor
        if len(shape) != 4:
            raise self.error(f"with pixelshuffler x must be (N, C, H, W), got shape {shape}", "bottom[0]")
        n, c, h, w = shape
        if c % (r * r):
            wrong = f"pixelshuffler {r} needs a multiple of {r * r} channels, got {c}"
            raise self.error(wrong, "reshape_param.pixelshuffler")
        top[0].reshape(n, c // (r * r), h * r, w * r)

    def arranged(self, x: Array) -> Array:
        (n, c, h, w), r = x.shape, self.factor
        view: Array = x.reshape(n, c // (r * r), r, r, h, w).transpose(0, 1, 4, 2, 5, 3)
        return view
