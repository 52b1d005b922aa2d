"""Inputs of nets: databases, images and their transforms, annotated images (roidb), detection settings."""
