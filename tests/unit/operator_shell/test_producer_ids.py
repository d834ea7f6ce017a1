"""Blocks of producer ids: none is assigned twice, even if others write to the Cluster's status."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from tests.unit.controller.controller_world import topic
from tests.unit.operator_shell.shell_world import ShellWorld
from tidemark.annotations import RESTORE_FROM_TIER
from tidemark.configuration.values import INT64_MAX
from tidemark.tier.maintenance.topic_restore import TierOrigin
from tidemark.tiering import Tiering, TieringState
from tidemark_operator.kube.errors import ApiServerUnavailable
from tidemark_operator.kube.kinds import CLUSTER, Json
from tidemark_operator.term.producer_ids import BLOCK_IDS, ProducerIdBlocks


@pytest.fixture
async def world() -> AsyncIterator[ShellWorld]:
    made = ShellWorld()
    made.make_cluster()
    async with made.term():
        yield made


def stored(world: ShellWorld) -> Json:
    body = world.server.find(CLUSTER, "main")
    assert body is not None
    return body


def next_id(world: ShellWorld) -> int:
    return int((stored(world).get("status") or {}).get("nextProducerId", 0))


async def test_a_block_is_persisted_before_it_is_given(world: ShellWorld) -> None:
    blocks = ProducerIdBlocks(world.services)
    began = next_id(world)
    first = await blocks.allocate(1)
    assert (first.error_code, first.producer_id_len) == (0, BLOCK_IDS)
    assert first.producer_id_start == began
    assert next_id(world) == began + BLOCK_IDS
    assert stored(world)["status"]["clusterId"]


async def test_concurrent_brokers_get_different_blocks(world: ShellWorld) -> None:
    began, blocks = next_id(world), ProducerIdBlocks(world.services)
    answers = await asyncio.gather(*(blocks.allocate(node) for node in range(5)))
    assert sorted(answer.producer_id_start for answer in answers) == [
        began + number * BLOCK_IDS for number in range(5)
    ]


async def test_blocks_of_another_controller_are_not_assigned_again(world: ShellWorld) -> None:
    body = stored(world)
    foreign_next = next_id(world) + 7 * BLOCK_IDS
    status = {**body["status"], "nextProducerId": foreign_next}
    # The other controller's write is not in this operator's cache.
    await world.api.replace_status(CLUSTER, {**body, "status": status})
    answer = await ProducerIdBlocks(world.services).allocate(1)
    assert answer.producer_id_start == foreign_next
    assert next_id(world) == foreign_next + BLOCK_IDS


async def test_ids_in_a_restored_log_are_not_assigned(world: ShellWorld) -> None:
    """The restored log has their sequence numbers: a new producer's records would be duplicates.

    The ids may exceed the clock if the clock of the lost cluster was ahead.
    """
    # Beyond the clock in microseconds, where ids of a new cluster start.
    ahead = next_id(world) + 10**15
    origin = TierOrigin(
        topic_id=uuid.UUID(int=5),
        partitions=1,
        leader_epoch=1,
        tiering=Tiering(TieringState.ENABLED, 0),
        first_producer_id=ahead,
    )
    info = topic(1, annotations={RESTORE_FROM_TIER: origin.text()})
    world.services.state.put_topic(info)
    assert (await ProducerIdBlocks(world.services).allocate(1)).producer_id_start == ahead
    assert (
        await ProducerIdBlocks(world.services).allocate(1)
    ).producer_id_start == ahead + BLOCK_IDS


async def test_a_block_with_an_unknown_write_outcome_is_lost(
    world: ShellWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, blocks = next_id(world), ProducerIdBlocks(world.services)
    replace_status = world.api.replace_status

    async def times_out(*given: object) -> Json:
        await replace_status(*given)  # type: ignore[arg-type]
        raise ApiServerUnavailable(0, "no answer")

    with monkeypatch.context() as patch:
        patch.setattr(world.api, "replace_status", times_out)
        assert (await blocks.allocate(1)).error_code != 0
    # The first block may have been stored: it is skipped, since ids are plentiful.
    assert (await blocks.allocate(1)).producer_id_start == began + BLOCK_IDS


async def test_the_last_ids_are_not_exceeded(world: ShellWorld) -> None:
    body = stored(world)
    status = {**body["status"], "nextProducerId": INT64_MAX - 10}
    await world.api.replace_status(CLUSTER, {**body, "status": status})
    await world.services.client.refresh(world.services.cluster_key)
    assert (await ProducerIdBlocks(world.services).allocate(1)).error_code != 0
    assert next_id(world) == INT64_MAX - 10
