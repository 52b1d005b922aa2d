"""Faster R-CNN and R-FCN: anchors, proposals, their targets, and training images."""
