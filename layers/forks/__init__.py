"""Layers of one fork of Caffe, or of one family of forks. Only code about a fork imports its layers by name."""
