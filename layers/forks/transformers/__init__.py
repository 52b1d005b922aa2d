"""Spatial transformers."""
