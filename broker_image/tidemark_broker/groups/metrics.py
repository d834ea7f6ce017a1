"""Metrics of a broker's groups, by state: a label per group would grow without limit."""

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tidemark.metrics import broker_table
from tidemark.metrics.families import family, single
from tidemark_broker.groups.core.values import GroupState
from tidemark_broker.groups.group_coordinator import GroupCoordinator


class GroupCollector(Collector):
    """Metrics of groups. Only reads, so another thread may collect them."""

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. Dead groups do not count."""
        (label,) = broker_table.GROUPS.labels
        counts = dict.fromkeys(label.values, 0)
        members = 0
        # A snapshot for each shard, since the loop changes groups meanwhile.
        for shard in self._groups.coordinators.active():
            for group in shard.all_groups():
                if group.state is not GroupState.DEAD:
                    counts[group.state.value] += 1
                members += len(group.members)
        yield family(broker_table.GROUPS, {(state,): number for state, number in counts.items()})
        yield single(broker_table.GROUP_MEMBERS, members)
        yield single(broker_table.GROUPS_BYTES, self._groups.room.used_bytes)
