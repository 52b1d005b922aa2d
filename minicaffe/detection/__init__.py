"""From an image to boxes: `load` makes a Detector, which is called on images."""

from .detect import Detections, draw, to_json
from .detector import Detector, load
from .region_features import Choice, Regions, region_features

__all__ = ["Choice", "Detections", "Detector", "Regions", "draw", "load", "region_features", "to_json"]
