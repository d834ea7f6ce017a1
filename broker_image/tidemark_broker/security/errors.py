"""Why somebody is not let in."""


class AuthenticationFailed(Exception):
    """It is not who it claims to be, or does not say so as it should. The text is for this broker's
    log: a client hears the same of all of them. Never has a secret in it."""


class IllegalState(Exception):
    """What a client sends is not what follows now."""
