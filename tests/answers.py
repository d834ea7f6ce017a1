"""Memory for answers that are not sent anywhere."""

from tidemark_broker.admission.response_memory import ResponseBudget, ResponseMemory


def room(size_bytes: int = 1 << 30) -> ResponseMemory:
    """As much as a test wants."""
    return ResponseMemory(ResponseBudget(size_bytes))
