"""Recurrent layers, and the labels of sequences (CTC)."""
