"""Layers of inisis/caffe, whose nets brocolli writes from PyTorch models."""
