"""Go programs that are built once on the user's machine and stored in the user's cache folder."""


class ToolchainError(RuntimeError):
    """Program that could not be found or built; the message says what to do."""
