"""Providers of kernels: loops that Numba compiles. Nothing imports this package; kernels.py loads its modules by name."""
