"""Filter, order and page of the topic list; a frame makes one pass over the lines."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from tidemark_cli.top.object_index import TopicLine

#: Lines per page of the list.
PAGE_SIZE = 40


@dataclass(frozen=True, slots=True)
class Query:
    """Selection of topics.

    ``pattern``: part of a name, or a shell pattern, of the topic or its object. ``page`` starts at
    0.
    """

    sort: str = "trouble"
    pattern: str = ""
    only_unwell: bool = False
    page: int = 0
    page_size: int = PAGE_SIZE

    def sorted_otherwise(self) -> "Query":
        """Return the query with the next sort key."""
        keys = list(SORTS)
        return replace(self, sort=keys[(keys.index(self.sort) + 1) % len(keys)], page=0)


@dataclass(frozen=True, slots=True)
class TopicPage:
    """Page of lines.

    ``matching`` of ``total`` topics match. ``page`` is the shown page, the last one if fewer topics
    match than before.
    """

    lines: tuple[TopicLine, ...]
    matching: int
    total: int
    page: int
    pages: int


#: Sort keys by name. Numbers descend, names ascend.
SORTS = {
    # As in ``tidemark status``, internal topics are last among those with equal trouble.
    "trouble": lambda line: (
        line.is_well,
        -line.severity,
        -line.leaderless,
        line.is_internal,
        line.kafka_name,
    ),
    "name": lambda line: line.kafka_name,
    "remote": lambda line: (-line.remote_bytes, line.kafka_name),
    "partitions": lambda line: (-line.partitions, line.kafka_name),
    "placeholders": lambda line: (-line.placeholders, line.kafka_name),
    "behind": lambda line: (-line.behind, line.kafka_name),
}


def select_page(lines: Iterable[TopicLine], query: Query) -> TopicPage:
    """Return the page that the query selects."""
    all_lines = list(lines)
    matching = [line for line in all_lines if _matches(line, query)]
    matching.sort(key=SORTS[query.sort])
    pages = max(1, -(-len(matching) // query.page_size))
    page = min(query.page, pages - 1)
    first = page * query.page_size
    return TopicPage(
        tuple(matching[first : first + query.page_size]), len(matching), len(all_lines), page, pages
    )


def _matches(line: TopicLine, query: Query) -> bool:
    if query.only_unwell and line.is_well:
        return False
    pattern = query.pattern
    if not pattern:
        return True
    names = (line.kafka_name, line.name)
    if any(sign in pattern for sign in "*?["):
        return any(fnmatchcase(name, pattern) for name in names)
    return any(pattern in name for name in names)
