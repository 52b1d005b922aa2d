"""Losses, Softmax, and the reading of their bottoms and the normalisation of their sums."""
