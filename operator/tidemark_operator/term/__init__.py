"""One term of leadership: taking over, what runs while it lasts, what brokers ask meanwhile."""
