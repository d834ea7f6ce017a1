"""A deterministic machine that runs the real brokers and the real operator against a bad world."""
