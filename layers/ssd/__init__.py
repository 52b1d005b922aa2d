"""SSD: prior boxes, matching and mining, detections, and the images to train with."""
