"""Normalisation of channels, maps and images."""
