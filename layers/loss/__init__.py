"""Losses, Softmax, and how they read their bottoms and normalise their sums."""
