"""Errors of finding and building programs."""


class ToolchainError(RuntimeError):
    """Program that could not be found or built; the message says what to do."""
