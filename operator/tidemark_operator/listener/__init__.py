"""The controller's listener: what brokers ask, and what the controller tells them."""
