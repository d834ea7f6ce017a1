"""Nodes that are stopped when their test ends."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.unit.replication.replica_nodes import ReplicaNode


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Callable[[int], ReplicaNode]]:
    """Return a function that starts the node with an id on its folder."""
    made: list[ReplicaNode] = []

    def make(node_id: int) -> ReplicaNode:
        made.append(ReplicaNode(node_id, tmp_path))
        return made[-1]

    yield make
    for item in made:
        await item.stop()
