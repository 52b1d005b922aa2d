"""From an image to boxes."""
