"""SSD: prior boxes, matching and mining, detections, and training images."""
