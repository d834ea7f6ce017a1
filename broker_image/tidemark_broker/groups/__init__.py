"""Consumer groups: their members, what these are assigned, and the offsets that they commit."""
