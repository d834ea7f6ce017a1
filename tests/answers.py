"""Memory for answers that are not sent anywhere."""

from tidemark_broker.response_memory import AnswerBudget, AnswerMemory


def room(size_bytes: int = 1 << 30) -> AnswerMemory:
    """As much as a test wants."""
    return AnswerMemory(AnswerBudget(size_bytes))
