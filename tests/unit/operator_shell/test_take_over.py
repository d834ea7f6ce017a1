"""Taking over on a fake API server: the epoch first, then every slice, before anything is
decided."""

import pytest

from tests.unit.operator_shell.shell_world import ShellWorld
from tidemark_operator.kube.errors import Conflict, NotFound, Unavailable
from tidemark_operator.kube.kinds import BROKER, CLUSTER, PARTITION_SLICE, Json
from tidemark_operator.leadership.terms import NotLeading
from tidemark_operator.slices.slice_store import SlicesUnusable


def made() -> ShellWorld:
    world = ShellWorld()
    world.make_cluster()
    return world


def epochs(world: ShellWorld) -> set[int]:
    return {body["controllerEpoch"] for body in world.server.of_kind(PARTITION_SLICE)}


async def test_the_epoch_is_written_first_and_then_into_every_slice() -> None:
    world = made()
    async with world.term():
        assert epochs(world) == {1}
    claims = [call for call in world.api.calls if call.startswith(("replace ", "replace_status"))]
    assert claims[0] == "replace_status Cluster main"
    status = world.status(CLUSTER, "main")
    assert status["controller"] == {"identity": "op", "epoch": 1}
    assert status["slices"] == len(world.server.of_kind(PARTITION_SLICE))
    async with world.term():
        assert epochs(world) == {2}


async def test_an_epoch_that_was_written_though_no_answer_came_is_not_raised_twice() -> None:
    world = made()
    world.api.fail("replace_status Cluster", after=True)
    async with world.term():
        assert world.services.state.controller_epoch == 1


async def test_a_slice_that_an_older_controller_still_writes_is_claimed_again() -> None:
    world = made()
    async with world.term():
        pass
    world.api.fail("replace PartitionSlice main-01", Conflict(409, "modified"), times=3)
    async with world.term():
        assert epochs(world) == {2}


async def test_a_lost_slice_stops_the_take_over_and_makes_no_new_one() -> None:
    world = made()
    async with world.term():
        pass
    del world.server._objects["PartitionSlice", "main-05"]
    with pytest.raises(SlicesUnusable, match="main-05"):
        async with world.term():
            pass
    assert world.server.find(PARTITION_SLICE, "main-05") is None


async def test_without_lease_or_cluster_there_is_no_take_over() -> None:
    world = made()
    world.leads = False
    with pytest.raises(NotLeading):
        async with world.term():
            pass
    with pytest.raises(NotFound):
        async with ShellWorld().term():
            pass
    world.leads = True
    world.api.fail("list_all Topic", Unavailable(503, "busy"))
    with pytest.raises(Unavailable):
        async with world.term():
            pass


async def test_topics_and_brokers_of_other_clusters_are_not_the_states() -> None:
    world = made()
    world.make_topic("ours")
    world.make_topic("theirs", clusterRef={"name": "other"})
    world.make_broker(1)
    spec: Json = {"clusterRef": {"name": "other"}, "nodeId": 2, "workload": "External"}
    world.make(BROKER, "broker-2", spec)
    async with world.term():
        assert set(world.services.state.topics) == {"ns/ours"}
        assert set(world.services.state.brokers) == {1}


async def test_of_two_brokers_of_one_node_id_the_registered_one_counts() -> None:
    world = made()
    world.make_broker(1, "zzz")
    async with world.term():
        await world.start_broker(1)
    world.make_broker(1, "aaa")
    async with world.term():
        assert world.services.state.brokers[1].key == "ns/zzz"


async def test_what_is_no_valid_topic_is_left_out_and_keeps_nobody_from_leading() -> None:
    world = made()
    world.make_topic("bad", partitions="many")
    world.make_topic("good")
    async with world.term():
        assert set(world.services.state.topics) == {"ns/good"}
