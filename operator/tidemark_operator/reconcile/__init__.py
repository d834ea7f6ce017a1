"""Level-based reconcilers: compare the actual with the desired state, and do one step."""
