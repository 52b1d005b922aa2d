"""Benchmarks against peers: `python -m benchmarks TABLE`, one module per table, ratios measured in one run."""
