"""Recognition of large responses."""

from dataclasses import dataclass

import pytest

from tidemark_broker.api.large_messages import is_large


@dataclass
class TopicPart:
    name: str
    partitions: tuple[int, ...]


@dataclass
class TopicsResponse:
    topics: tuple[TopicPart, ...] | None


@dataclass
class NestedResponse:
    assignment: TopicsResponse | None


@dataclass
class GroupsResponse:
    groups: tuple[TopicsResponse, ...]


@pytest.mark.parametrize(
    ("topics", "partitions", "large"),
    [(0, 0, False), (1, 900, False), (1, 1100, True), (1100, 0, True), (600, 1, True)],
)
def test_a_response_is_large_by_the_number_of_its_elements(
    topics: int, partitions: int, large: bool
) -> None:
    answer = TopicsResponse(tuple(TopicPart("t", tuple(range(partitions))) for _ in range(topics)))
    assert is_large(answer) is large
    assert is_large(NestedResponse(answer)) is large
    assert is_large(GroupsResponse((answer,))) is large
    assert not is_large(NestedResponse(None))
    assert not is_large(TopicsResponse(None))
    assert not is_large(None)
