"""What a transaction coordinator decides: requests, records and time in; answers and records out.
No clock, no sockets, no log."""
