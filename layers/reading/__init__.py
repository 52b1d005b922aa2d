"""What the data layers share: batches, prefetching and image transforms."""
