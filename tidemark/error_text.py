"""Text of an exception for logs, conditions and answers."""


def error_text(error: BaseException) -> str:
    """Return the message of an exception, or its type where it has none.

    Python's own time-outs and cancellations have no message. An exception object is always true, so
    ``error or "no answer"`` does not fill the gap."""
    return str(error) or type(error).__name__
