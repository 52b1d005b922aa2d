"""Layers that move, join, cut and resize what is in a blob."""
