"""ReLU: y = max(x, 0) + negative_slope * min(x, 0). Source: Caffe's relu_layer.hpp (Nair and Hinton, 2010)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from minicaffe.blob import Blob
from minicaffe.cuda.convolution import DeviceEpilogue
from minicaffe.cuda.launches import data_pair
from minicaffe.layers.elementwise.epilogue import Epilogue, epilogue_step, relu, relu_backward
from minicaffe.layers.elementwise.fusion import Channelwise
from minicaffe.threads import Index, each_block


class ReLU(Channelwise):
    """y = x where x > 0, else negative_slope * x; the slope at 0 is that of the negative side.

    bottom: x (any shape). top: y (the same shape); may be in place. A NaN stays NaN. Raises no LayerError.
    """

    type = "ReLU"
    num_bottom = 1
    num_top = 1
    in_place = True
    param_block = ("relu_param",)
    weight_names = ()
    elementwise = True
    copies = (0, 0)
    uses_kernels = ((epilogue_step,), ())
    channelwise = True
    is_rectifier = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.negative_slope = self.param.relu_param.negative_slope
        self._sign = Blob((), self.dtype)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape(bottom[0].shape)
        if self.negative_slope < 0 and top[0] is bottom[0]:
            self._sign.reshape(bottom[0].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x = bottom[0].data
        if self.negative_slope < 0 and top[0] is bottom[0]:
            self._sign.data[...] = x  # y has lost the sign of x
        x, y = x.reshape(-1), top[0].data.reshape(-1)
        each_block(x.shape, lambda index: relu(x[index], self.negative_slope, out=y[index]))

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        sign = self._sign.device_data("write") if self.negative_slope < 0 and top[0] is bottom[0] else 0
        x, y = data_pair(bottom[0], top[0])
        self.launch("relu.relu", top[0].count, top[0].count, x, self.negative_slope, y, sign)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        sign = self._sign_of(bottom, top).read_data().reshape(-1)
        dy, dx = top[0].diff.reshape(-1), bottom[0].diff.reshape(-1)

        def step(index: Index) -> None:
            relu_backward(dy[index], sign[index] > 0, self.negative_slope, out=dx[index])

        each_block(dy.shape, step)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        sign, dy = self._sign_of(bottom, top).device_data("read"), top[0].device_diff("read")
        dx = bottom[0].device_diff("write")
        self.launch("relu.relu_backward", top[0].count, top[0].count, sign, dy, self.negative_slope, dx)

    def _sign_of(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> Blob:
        """Return the blob whose elements are greater than 0 where x is."""
        # otherwise y > 0 exactly where x > 0: in place y serves
        return self._sign if self.negative_slope < 0 and top[0] is bottom[0] else bottom[0]

    def may_be_epilogue(self) -> bool:
        return self.negative_slope >= 0 and super().may_be_epilogue()  # else backward in place needs the sign that y loses

    def epilogue(self, shape: tuple[int, ...]) -> Epilogue:
        return Epilogue(negative_slope=self.negative_slope)

    def gradient(self) -> Epilogue:
        return Epilogue(negative_slope=self.negative_slope)

    def device_epilogue(self, before: DeviceEpilogue, shape: tuple[int, ...]) -> DeviceEpilogue:
        return replace(before, negative_slope=self.negative_slope)
