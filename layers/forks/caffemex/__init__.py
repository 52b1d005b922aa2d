"""CaffeMex."""
