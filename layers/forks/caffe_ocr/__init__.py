"""caffe_ocr."""
