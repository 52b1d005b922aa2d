"""Side by side with peers: `python -m benchmarks TABLE`, one module a table, ratios taken in one run."""
