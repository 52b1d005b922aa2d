"""C3D: convolution and pooling of clips."""
