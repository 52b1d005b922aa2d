"""Conditional random fields: their filters."""
