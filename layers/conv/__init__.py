"""Convolutions and matrix products: columns, blocks of products, Winograd's method, and what is fused behind them."""
