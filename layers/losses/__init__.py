"""What the losses have in common: how they read their bottoms and normalize their sums."""
