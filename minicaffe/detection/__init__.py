"""From an image to boxes: `load` makes a Detector, which is called on images."""

from .detect import Detections, draw, to_json
from .detector import Detector, load

__all__ = ["Detections", "Detector", "draw", "load", "to_json"]
