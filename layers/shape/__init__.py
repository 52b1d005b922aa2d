"""Layers that move, join, cut and resize a blob's content."""
