"""Multi-task network cascades (MNC)."""
