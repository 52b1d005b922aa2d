"""Inputs: databases, lists of images, HDF5 files and arrays."""
