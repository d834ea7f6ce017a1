"""Limits of a message: each element becomes an object that is much larger than its bytes."""

from dataclasses import dataclass

#: Longest string of Kafka, whose length has 16 bits: the compact form could claim more.
STRING_BYTES_MAX = 0x7FFF


class TooManyElements(ValueError):
    """A message has more elements than its bounds allow."""


@dataclass(frozen=True, slots=True)
class MessageBounds:
    """Limits of a message.

    ``elements``: in all of its arrays together. ``string_bytes``: in each string; Tidemark's own
    messages have longer strings than Kafka's.
    """

    elements: int = 2_000_000
    string_bytes: int = 0xFFFF_FFFF


ANY = MessageBounds()


class Remaining:
    """Elements that a message may still have while it is read, and the bytes of each string."""

    __slots__ = ("_elements", "string_bytes")

    def __init__(self, bounds: MessageBounds) -> None:
        self._elements = bounds.elements
        self.string_bytes = bounds.string_bytes

    def take(self, elements: int, least_bytes: int, rest_bytes: int) -> None:
        """Count elements of at least ``least_bytes`` each, which ``rest_bytes`` have to contain.

        Called before any of them is read: a claim cannot exceed the bytes that follow, and nested
        arrays multiply. Raises ``ValueError``.
        """
        if elements * least_bytes > rest_bytes:
            raise ValueError(f"{elements} elements in {rest_bytes} bytes")
        self._elements -= elements
        if self._elements < 0:
            raise TooManyElements("more elements than a message may have")
