"""What a group decides: requests and the time in, records and answers out."""
