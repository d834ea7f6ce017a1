"""A full disk under one of three brokers: producers continue, and the broker recovers by itself."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.benchmarks.outages import Outages, written_to
from tests.conformance.local_cluster import RunningCluster, wait
from tidemark_devcluster import processes

pytestmark = pytest.mark.full

#: Well below a session, and below ``replica.lag.time.max.ms``: nothing is waited for.
OUTAGE_S = 6.0


@contextmanager
def without_room(outages: Outages, node: int) -> Iterator[None]:
    """The kernel refuses to let any file of that broker grow (EFBIG), as a full disk does."""
    record = processes.find(outages.cluster.local.layout, f"broker-{node}")
    assert record is not None
    soft, hard = resource.prlimit(record.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(record.pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.prlimit(record.pid, resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.slow
def test_full_disk_stops_no_broker_with_space(local_cluster: RunningCluster) -> None:
    with written_to(local_cluster) as outages:
        leader = outages.row().leader
        follower = next(node for node in outages.row().isr if node != leader)
        for node in (follower, leader):
            began_s = time.monotonic()
            with without_room(outages, node):
                wait(lambda node=node: node not in outages.row().isr, f"broker {node} to give way")
                outages.progress()
                assert outages.row().leader not in (node, -1)
                assert outages.writer.outage_s(began_s) < OUTAGE_S
            outages.settle()
        outages.writer.stop()
        assert outages.writer.errors == []
