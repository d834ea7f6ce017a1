"""A producer that runs while the leaders under it are restarted, cleanly and after a crash."""

import pytest

from tests.benchmarks.outages import written_to
from tests.benchmarks.restarts import KINDS, restart_leader
from tests.conformance.local_cluster import RunningCluster

pytestmark = pytest.mark.full

#: A session of nine seconds runs out, and a loaded machine takes its time for the rest.
FAILOVER_S = 20.0


@pytest.mark.slow
def test_producer_survives_broker_restarts(local_cluster: RunningCluster) -> None:
    with written_to(local_cluster) as outages:
        for kind in (*KINDS, *KINDS):
            _, outage_s = restart_leader(outages, kind)
            assert outage_s < FAILOVER_S, kind
        writer, row = outages.writer, outages.row()
        writer.stop()
        assert writer.errors == []
        # Every record that was written stands at exactly one acknowledged offset.
        values = sorted(map(int, writer.acknowledged.values()))
        assert values == list(range(len(values)))
        assert len(row.isr) == 3
