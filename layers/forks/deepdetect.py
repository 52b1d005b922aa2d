"""DeepDetect's layers for sparse inputs."""

from __future__ import annotations

import numpy as np
from google.protobuf.message import DecodeError

from minicaffe import limits
from minicaffe.blob import Array
from minicaffe.data.data_transformer import DataTransformer
from minicaffe.data.prefetch import Batch
from minicaffe.data.shard import current_shard
from minicaffe.errors import DataError
from minicaffe.layers.conv.inner_product import InnerProduct
from minicaffe.layers.data.data import DatumSource, open_source
from minicaffe.layers.data.prefetching import PrefetchingLayer
from minicaffe.proto import caffe_pb2


class SparseData(PrefetchingLayer):
    """DeepDetect's SparseDatums of a database as dense rows, in the order of their keys, again and again.

        y[n, indices[k]] += data[k] for k < nnz

    Source: sparse_data_layer.cpp of beniz/caffe, proposed to BVLC's Caffe as #2364. Its top is a sparse blob, which only its
    SparseInnerProduct reads; here it is a blob as any other.

    No bottom. top: data (batch_size, size), the size being that of the batch's first item; optionally labels (batch_size,),
    which may be fractions. transform_param has no effect, as in the original.
    Raises LayerError for a database that is missing or damaged, and an item that is no SparseDatum, has another size, fewer
    than nnz numbers, or an index beyond its size.
    """

    type = "SparseData"
    num_top = (1, 2)
    param_block = ("data_param",)

    def make_source(self, tops: int, generator: np.random.Generator) -> SparseSource:
        param = self.param.data_param
        self.prefetched = self.positive(param.prefetch, "data_param.prefetch")
        self.positive(param.batch_size, "data_param.batch_size")
        untransformed = DataTransformer(caffe_pb2.TransformationParameter(), self.phase, generator, self.dtype)
        return SparseSource(open_source(param), param, untransformed, tops > 1, current_shard(self.phase))


class SparseSource(DatumSource):
    """Batches of a database's SparseDatums."""

    def shapes(self) -> list[tuple[int, ...]]:
        datum = self._datum(*self._item_of(self.database.items()))
        return [(self.batch_size, datum.size), (self.batch_size,)][: 1 + self.labelled]

    def next_batch(self) -> Batch:
        labels = np.empty(self.batch_size, self.transformer.dtype)
        for i in range(self.batch_size):
            key, value = self._next_of_shard()
            datum = self._datum(key, value)
            if i == 0:
                limits.check("a batch", self.batch_size * datum.size * labels.itemsize, "bytes")
                batch = np.zeros((self.batch_size, datum.size), labels.dtype)
            if datum.size != batch.shape[1]:
                raise DataError(f"{self._name(key)}: its size is {datum.size}, the batch's first item's {batch.shape[1]}")
            labels[i] = datum.label
            self._put(datum, key, batch[i])
        return (batch, labels) if self.labelled else (batch,)

    def _datum(self, key: bytes, value: bytes) -> caffe_pb2.SparseDatum:
        datum = caffe_pb2.SparseDatum()
        try:
            datum.ParseFromString(value)
        except DecodeError as error:
            raise DataError(f"{self._name(key)}: not a SparseDatum: {error}") from error
        if datum.size < 1:
            raise DataError(f"{self._name(key)}: its size must be > 0, got {datum.size}")
        return datum

    def _put(self, datum: caffe_pb2.SparseDatum, key: bytes, row: Array) -> None:
        """Add the item's numbers to row (size,), which is all zeros."""
        stored = min(len(datum.indices), len(datum.data))
        if not 0 <= datum.nnz <= stored:
            raise DataError(f"{self._name(key)}: nnz is {datum.nnz}, but {stored} numbers are stored")
        indices = np.array(datum.indices[: datum.nnz], np.int64)
        if ((indices < 0) | (indices >= len(row))).any():
            raise DataError(f"{self._name(key)}: an index is not in 0 to {len(row) - 1}, its size being {len(row)}")
        np.add.at(row, indices, np.array(datum.data[: datum.nnz], row.dtype))


class SparseInnerProduct(InnerProduct):
    """y = x weight^T + bias, the axes from inner_product_param.axis on being one vector of K numbers.

    InnerProduct of DeepDetect's Caffe, for inputs that are nearly all zeros.

    The fork computes it from the numbers that are not 0 alone; blobs here are dense, so that it is InnerProduct. Its gradients
    of the weights replace what is in their diffs instead of adding to it (a bug wherever iter_size or shared weights add up),
    and it has none for a sparse bottom. Source: sparse_inner_product_layer.cpp of beniz/caffe, proposed to BVLC's Caffe as
    #2364.

    bottom: x (N..., K...). top: y (N..., num_output). blobs: weight (num_output, K), or (K, num_output) with
    transpose; bias (num_output). Raises LayerError as InnerProduct does.
    """

    type = "SparseInnerProduct"
