"""YOLO: caffe-yolo, caffe-yolov2 and MobileNet-YOLO."""
