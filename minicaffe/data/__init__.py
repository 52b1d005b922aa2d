"""What nets are fed with: databases, images and their transforms, annotated images (roidb), detection settings."""
