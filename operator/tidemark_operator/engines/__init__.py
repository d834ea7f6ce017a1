"""What stands behind the controller: the brokers that carry out what was decided."""
