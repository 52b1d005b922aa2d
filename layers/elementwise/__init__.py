"""Helpers of layers that treat every element, or every channel, alike."""
