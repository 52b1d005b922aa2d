"""Faster R-CNN and R-FCN: anchors, proposals, their targets, and the training images."""
