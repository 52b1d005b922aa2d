"""Porting nets: ONNX, comparison, dumps, other class counts, rescued prototxts."""
