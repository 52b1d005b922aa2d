"""SparseInnerProduct: InnerProduct of DeepDetect's Caffe, for inputs that are nearly all zeros.

    y = x weight^T + bias

The fork computes it from the numbers that are not 0 alone; blobs here are dense, so that it is InnerProduct. Its gradients of
the weights replace what is in their diffs instead of adding to it (a bug wherever iter_size or shared weights add up), and it
has none for a sparse bottom. Source: sparse_inner_product_layer.cpp of beniz/caffe, proposed to BVLC's Caffe as #2364.
"""

from __future__ import annotations

from minicaffe.layers.conv.inner_product import InnerProduct


class SparseInnerProduct(InnerProduct):
    """y = x weight^T + bias, the axes from inner_product_param.axis on being one vector of K numbers.

    bottom: x (N..., K...). top: y (N..., num_output). blobs: weight (num_output, K), or (K, num_output) with
    transpose; bias (num_output). Raises LayerError as InnerProduct does.
    """

    type = "SparseInnerProduct"
