"""Number of elements in the containers of a tree of objects.

Memory in bytes varies with the allocator; elements do not. A test creates and deletes many objects
and compares: a container that grew by about their number leaks.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

_OURS = ("tidemark", "tests")


def elements(root: object) -> dict[str, int]:
    """Sum of the lengths of containers below ``root``, by the path of attributes that leads there.
    Containers are looked into, and objects of this project; each is counted once."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    waiting: deque[tuple[str, object]] = deque([("", root)])
    while waiting:
        path, value = waiting.popleft()
        # Shared objects count once, and cycles end.
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Mapping | Set | Sequence | deque) and not isinstance(
            value, str | bytes
        ):
            found[path] = found.get(path, 0) + len(value)
            inner: list[Any] = list(value.values() if isinstance(value, Mapping) else value)
            waiting.extend((path, item) for item in inner)
        # Only objects of this project are looked into: libraries have caches of their own.
        if type(value).__module__.startswith(_OURS):
            waiting.extend((f"{path}.{name}", item) for name, item in _attributes(value))
    return found


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    yield from getattr(value, "__dict__", {}).items()
    for cls in type(value).__mro__:
        for name in getattr(cls, "__slots__", ()):
            if hasattr(value, name):
                yield name, getattr(value, name)


def grown(before: Mapping[str, int], after: Mapping[str, int], by: int) -> dict[str, int]:
    """The paths below which at least ``by`` elements more are kept."""
    return {
        path: number - before.get(path, 0)
        for path, number in after.items()
        if number - before.get(path, 0) >= by
    }
