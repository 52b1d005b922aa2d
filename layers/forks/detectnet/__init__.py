"""DetectNet, of NVIDIA's Caffe and DIGITS: labels as maps of coverage, and boxes from such maps."""
