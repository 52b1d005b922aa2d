"""NumPy computes in these tests."""

from numpy_computes import numpy_computes

__all__ = ["numpy_computes"]
