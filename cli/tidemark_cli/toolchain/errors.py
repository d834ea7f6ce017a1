"""What can go wrong while a program is found or built."""


class ToolchainError(RuntimeError):
    """A program could not be found or built; the message says what to do about it."""
