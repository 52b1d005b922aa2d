"""Prototxt and weights, in and out: every generation and fork of Caffe's files."""
