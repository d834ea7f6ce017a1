"""Nodes that are stopped when their test has ended."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.unit.replication.replica_nodes import Node


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Callable[[int], Node]]:
    """Makes the node of that id on its folder."""
    made: list[Node] = []

    def make(node_id: int) -> Node:
        made.append(Node(node_id, tmp_path))
        return made[-1]

    yield make
    for item in made:
        await item.stop()
