"""CRF-RNN."""
