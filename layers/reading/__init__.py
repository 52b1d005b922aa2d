"""What the data layers have in common: batches, prefetching and image transforms."""
