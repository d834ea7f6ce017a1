"""Credentials of users: passwords, SCRAM (RFC 5802), and the Secrets that contain them."""
