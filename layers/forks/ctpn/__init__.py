"""CTPN, a detector of lines of text."""
