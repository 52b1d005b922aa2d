"""Convolutions and matrix products: columns, blocked products, Winograd's method and fused epilogues."""
