"""Consumer groups, their coordinator, and committed offsets."""
