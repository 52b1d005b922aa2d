"""Arithmetic of blobs element by element or channel by channel, and what is fused with it."""
