"""What the groups of a broker are and weigh. By state, not by group: a label for each would grow
without limit."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidemark_broker.groups.core.consumer_values import ConsumerGroupState
from tidemark_broker.groups.core.values import GroupState
from tidemark_broker.groups.group_coordinator import GroupCoordinator

#: name -> help text
TABLE = {
    "tidemark_broker_groups": "Consumer groups that this broker coordinates, by their state.",
    "tidemark_broker_group_members": "Members of all of them.",
    "tidemark_broker_groups_bytes": "About what they take of memory "
    "(tidemark.groups.bytes.max is the most).",
}
_STATES = tuple(
    dict.fromkeys(
        state.value for state in (*GroupState, *ConsumerGroupState) if state is not GroupState.DEAD
    )
)


class GroupCollector(Collector):
    """Reads the figures when they are asked for; only reads, so another thread may."""

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def collect(self) -> Iterator[Metric]:
        """All families of :data:`TABLE`."""
        counts: Counter[str] = Counter()
        members = 0
        for shard in self._groups.coordinators.active():
            for group in shard.all_groups():
                counts[group.state.value] += 1
                members += len(group.members)
        name = "tidemark_broker_groups"
        by_state = GaugeMetricFamily(name, TABLE[name], labels=["state"])
        for state in _STATES:
            by_state.add_metric([state], counts[state])
        yield by_state
        name = "tidemark_broker_group_members"
        yield GaugeMetricFamily(name, TABLE[name], value=members)
        name = "tidemark_broker_groups_bytes"
        yield GaugeMetricFamily(name, TABLE[name], value=self._groups.room.used_bytes)
