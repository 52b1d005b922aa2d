"""Solvers, their updates, learning rates and snapshots."""
