"""Brokers that restart repeatedly and do not get their leaders back yet.

A broker that was down gets its leaders back as soon as it is in sync. One that restarts in a loop
would have each of its partitions change leaders twice in every round, which producers and consumers
would notice. A broker that has returned more than once recently must therefore first stay for a
while, twice as long each time. A single restart costs no wait. Only the return of leaders is
delayed: such a broker is elected like any other if no other can lead, or on request (ElectLeaders).

In memory: another controller starts counting from zero. The clock is an argument.
"""

from collections.abc import Iterable

from tidemark_operator.controller.state.events import Event, warning
from tidemark_operator.controller.state.model import BrokerInfo

#: Time for which a return counts; it is longer than the longest wait.
REMEMBERED_S = 900
#: Wait after the second return, and the longest wait.
FIRST_S = 60
MOST_S = 600
#: Returns that are counted; more of them make no difference.
_COUNTED_MAX = 16


def wait_s(times: int) -> int:
    """Return how long a broker has to stay after a number of recent returns."""
    return 0 if times < 2 else min(FIRST_S << min(times - 2, _COUNTED_MAX), MOST_S)


class BrokerReturns:
    """Returns of brokers in one term; :meth:`look` needs all brokers about once a second."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, bool]] = {}
        self._at_s: dict[int, list[int]] = {}

    def observe(self, brokers: Iterable[BrokerInfo], *, now_s: int) -> list[Event]:
        """Record brokers that have returned (restarted or unfenced) since the last call.

        Returns an Event for each broker that now has to wait before it gets its leaderships back,
        because it returned too often. Without an earlier observation of a broker, nothing counts as
        a return.
        """
        before, self._seen = self._seen, {}
        events = []
        # A changed broker epoch counts too: a restart may be faster than two calls.
        for broker in brokers:
            seen = self._seen[broker.node_id] = (broker.broker_epoch, broker.live)
            if broker.live and before.get(broker.node_id, seen) != seen:
                events += self._record_return(broker, now_s)
        # A deleted Broker is forgotten.
        self._at_s = {
            node_id: at_s for node_id, at_s in self._at_s.items() if node_id in self._seen
        }
        return events

    def _record_return(self, broker: BrokerInfo, now_s: int) -> list[Event]:
        """Record a broker's return; return an Event if it now has to wait for its leaderships."""
        known = self._at_s.get(broker.node_id, [])
        # Returns expire, so that a broker recovers its leaders once it is stable.
        lately = [at_s for at_s in known if now_s - at_s < REMEMBERED_S]
        self._at_s[broker.node_id] = [*lately, now_s][-_COUNTED_MAX:]
        times = len(self._at_s[broker.node_id])
        if not wait_s(times):
            return []
        text = (
            f"broker {broker.node_id} has returned {times} times in "
            f"{REMEMBERED_S // 60} minutes. It leads again after it has been "
            f"live for {wait_s(times)} s"
        )
        return [warning("Broker", broker.key, "LeadersHeldBack", text)]

    def flapping(self, *, now_s: int) -> frozenset[int]:
        """Return the brokers that have not stayed long enough."""
        return frozenset(
            node_id for node_id, at_s in self._at_s.items() if now_s - at_s[-1] < wait_s(len(at_s))
        )
