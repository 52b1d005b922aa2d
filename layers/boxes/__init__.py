"""Boxes: anchors, codes, NMS, and SSD's matching, mining and result files."""
