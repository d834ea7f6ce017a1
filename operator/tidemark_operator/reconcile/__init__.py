"""Level-based reconcilers: look at what is, compare with what should be, do one step."""
