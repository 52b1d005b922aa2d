"""Python layers."""
