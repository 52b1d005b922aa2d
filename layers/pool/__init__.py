"""Pooling: windows, sizes, masks and the ways to compute it."""
