"""SqueezeDet."""
