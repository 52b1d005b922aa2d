"""Metrics of a net's predictions."""
