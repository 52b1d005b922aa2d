"""From an image to boxes: `load` makes a Detector, which is called on images."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .detect import Detections, draw, to_json
    from .detector import Detector, load
    from .proposals import proposal_settings, write_proposals
    from .region_features import Choice, Regions, region_features

__all__ = [
    "Choice", "Detections", "Detector", "Regions", "draw", "load", "proposal_settings", "region_features", "to_json",
    "write_proposals",
]  # fmt: skip

_HOMES = {
    "detect": ("Detections", "draw", "to_json"),
    "detector": ("Detector", "load"),
    "proposals": ("proposal_settings", "write_proposals"),
    "region_features": ("Choice", "Regions", "region_features"),
}


def __getattr__(name: str) -> Any:
    """Import a name at its first use: Pillow and the families' layers take longer than a small net."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f".{home}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
