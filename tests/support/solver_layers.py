"""The layers of the golden solver cases that the catalogue may lack: just enough of them to train those nets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minicaffe.layer import Layer
from minicaffe.layers import CATALOGUE


class RowsData(Layer):
    """HDF5Data: batches of rows in the file's order, starting again at row 0 after the last."""

    num_top = (1, None)

    def setup(self, bottom, top):
        import h5py

        param = self.param.hdf5_data_param
        (name,) = Path(param.source).read_text().split()
        with h5py.File(name) as file:
            self.arrays = [np.asarray(file[top_name]) for top_name in self.param.top]
        self.rows, self.batch = 0, param.batch_size

    def reshape(self, bottom, top):
        for blob, array in zip(top, self.arrays, strict=True):
            blob.reshape((self.batch, *array.shape[1:]))

    def forward(self, bottom, top):
        rows = (self.rows + np.arange(self.batch)) % len(self.arrays[0])
        self.rows += self.batch
        for blob, array in zip(top, self.arrays, strict=True):
            blob.data[...] = array[rows]


class Neuron(Layer):
    """y = f(x); dx = dy * slope(y), and not in place."""

    num_bottom, num_top = 1, 1

    def reshape(self, bottom, top):
        top[0].reshape(bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = self.function(bottom[0].data)

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = top[0].diff * self.slope(top[0].data)


class TanH(Neuron):
    function, slope = staticmethod(np.tanh), staticmethod(lambda y: 1 - y * y)


class Sigmoid(Neuron):
    function, slope = staticmethod(lambda x: 1 / (1 + np.exp(-x))), staticmethod(lambda y: y * (1 - y))


class PReLU(Layer):
    """y = x where x > 0, else slope of the channel times x, in place."""

    num_bottom, num_top, in_place = 1, 1, True

    def setup(self, bottom, top):
        self.blobs.add_blob(bottom[0].shape[1]).data[...] = 0.25

    def reshape(self, bottom, top):
        top[0].reshape(bottom[0].shape)

    def forward(self, bottom, top):
        self.x = bottom[0].data.copy()
        slope = self.blobs[0].data.reshape(1, -1, 1, 1)
        top[0].data[...] = np.where(self.x > 0, self.x, slope * self.x)

    def backward(self, top, propagate_down, bottom):
        dy = top[0].diff.copy()
        self.blobs[0].diff[...] += (dy * np.minimum(self.x, 0)).sum((0, 2, 3))
        bottom[0].diff[...] = dy * np.where(self.x > 0, 1, self.blobs[0].data.reshape(1, -1, 1, 1))


class EuclideanLoss(Layer):
    """Half the mean over the batch of the squared distance."""

    num_bottom, num_top, is_loss = 2, 1, True

    def reshape(self, bottom, top):
        top[0].reshape(())

    def forward(self, bottom, top):
        self.difference = bottom[0].data - bottom[1].data
        top[0].data[...] = (self.difference**2).sum() / len(self.difference) / 2

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = top[0].diff * self.difference / len(self.difference)


STAND_INS = {"HDF5Data": RowsData, "TanH": TanH, "Sigmoid": Sigmoid, "PReLU": PReLU, "EuclideanLoss": EuclideanLoss}


@pytest.fixture
def stand_ins(monkeypatch):
    """Put the stand-ins into the catalogue, where it has no such type of its own."""
    for name, layer in STAND_INS.items():
        if name not in CATALOGUE:
            monkeypatch.setitem(CATALOGUE, name, layer)
