"""What the losses share: how they read their bottoms and normalize their sums."""
