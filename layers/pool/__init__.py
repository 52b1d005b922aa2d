"""Pooling and its inverses: windows, sizes, masks and the ways to compute it."""
