"""Measures of what a net predicts."""
