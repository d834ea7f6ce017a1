"""What a user proves who it is with: passwords, what RFC 5802 makes of them, and their Secrets."""
