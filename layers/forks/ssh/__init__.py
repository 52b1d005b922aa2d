"""SSH, a face detector."""
