"""DeepDetect."""
