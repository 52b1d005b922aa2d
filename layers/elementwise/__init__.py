"""Arithmetic of blobs by element or by channel, and its fusion with other layers."""
