"""Which brokers are not given their leaders back yet: those that keep coming back.

A broker that was away is given its leaders back as soon as it is in sync. One that ends and starts
again in a loop would have each of its partitions change leaders twice in every round, and each time
producers and consumers would notice. So whoever has come back more than once lately has to stay for
a while first, twice as long each time; a single restart costs no wait. Only giving back is put off:
where nobody else can lead, such a broker is elected as any other, and so it is where somebody asks
for it (ElectLeaders).

In memory: another controller counts anew. The clock is an argument.
"""

from collections.abc import Iterable

from tidemark_operator.controller.events import Event, warning
from tidemark_operator.controller.model import BrokerInfo

#: For so long a coming back is remembered; longer than anybody waits.
REMEMBERED_S = 900
#: The wait after the second one, and the longest.
FIRST_S = 60
MOST_S = 600
#: More than are ever told apart.
_COUNTED_MAX = 16


def wait_s(times: int) -> int:
    """How long a broker that has come back so often lately has to stay."""
    return 0 if times < 2 else min(FIRST_S << min(times - 2, _COUNTED_MAX), MOST_S)


class Comebacks:
    """Of one term. To be told of all brokers about once a second."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, bool]] = {}
        self._at_s: dict[int, list[int]] = {}

    def look(self, brokers: Iterable[BrokerInfo], *, now_s: int) -> list[Event]:
        """Take in which brokers are live, under which registrations; what people are told of those
        that have to wait. What is seen first is no coming back: it may have been there for long."""
        before, self._seen = self._seen, {}
        events = []
        for broker in brokers:
            seen = self._seen[broker.node_id] = (broker.broker_epoch, broker.live)
            if broker.live and before.get(broker.node_id, seen) != seen:
                events += self._came(broker, now_s)
        self._at_s = {
            node_id: at_s for node_id, at_s in self._at_s.items() if node_id in self._seen
        }
        return events

    def _came(self, broker: BrokerInfo, now_s: int) -> list[Event]:
        known = self._at_s.get(broker.node_id, [])
        lately = [at_s for at_s in known if now_s - at_s < REMEMBERED_S]
        self._at_s[broker.node_id] = [*lately, now_s][-_COUNTED_MAX:]
        times = len(self._at_s[broker.node_id])
        if not wait_s(times):
            return []
        text = (
            f"broker {broker.node_id} has restarted {times} times in "
            f"{REMEMBERED_S // 60} minutes. It leads again after it has been "
            f"live for {wait_s(times)} s"
        )
        return [warning("Broker", broker.key, "LeadersHeldBack", text)]

    def held_back(self, *, now_s: int) -> frozenset[int]:
        """The brokers that have not stayed for long enough."""
        return frozenset(
            node_id for node_id, at_s in self._at_s.items() if now_s - at_s[-1] < wait_s(len(at_s))
        )
