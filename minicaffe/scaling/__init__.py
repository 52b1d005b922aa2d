"""Scaling: detection on many images, on one machine or Ray, and training on MPI."""
