"""Out of Caffe, and from one model to another: ONNX, comparison, dumps, other classes, rescued prototxts."""
