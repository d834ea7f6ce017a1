"""Configuration of topics, groups and brokers."""
