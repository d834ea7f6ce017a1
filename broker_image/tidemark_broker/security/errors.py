"""Errors of a SASL or TLS authentication."""


class AuthenticationFailed(Exception):
    """A failed authentication.

    The text is for this broker's log and never contains a secret. Clients receive the same text for
    all failures.
    """


class IllegalState(Exception):
    """A message of a client that is not expected in this state."""
