"""pulkitag's Caffe."""
