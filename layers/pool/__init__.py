"""Pooling and its inverses: windows, sizes, masks and methods."""
