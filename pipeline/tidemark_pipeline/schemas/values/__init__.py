"""What all formats of values have in common."""
