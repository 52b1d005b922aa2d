"""Correlation's products by a compiled loop."""

from __future__ import annotations

from minicaffe.compiled.jit import loop
from minicaffe.kernels import provides
from minicaffe.layers.forks.flownet import correlation

add_products = loop("T[:,::1], T[:,:,::1], UniTuple(int64, 3), T[:,:,::1]")(correlation.add_products_by_definition)
provides(correlation.add_products, loops=(add_products,))(add_products)
