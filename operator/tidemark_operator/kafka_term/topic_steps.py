"""Parts of a Topic's steps on Apache Kafka: delays, backoff of requests, and status writes."""

import dataclasses
import time
from collections.abc import Hashable

from tidemark_operator.controller.state.model import Blocker, TopicInfo
from tidemark_operator.controller.topic_deletion import DeletionStep
from tidemark_operator.controller.topics import TopicDecision
from tidemark_operator.kafka_term.services import KafkaServices
from tidemark_operator.kube.kinds import Json, Key
from tidemark_operator.reconcile.shared_steps import quiet_deletion_s, write_topic_status

#: Delays before a Topic is read or changed again, in seconds.
LOOK_AGAIN_S = 5.0
#: Time for which no broker must know an existing topic before it counts as deleted.
GONE_S = 10.0
#: Delay before a request is repeated that a person has to fix.
REFUSED_S = 30.0
#: Delay before a blocker is checked again.
RECHECK_S = 10.0
#: A broker may not know yet what was just created.
KNOWN_TRIES, KNOWN_S = 12, 0.05


class RequestBackoff:
    """Last request to Kafka by topic and kind, with its refusal (None if accepted).

    The same request is not repeated at once: brokers show changes with a delay, and a refused one
    waits for a person.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[Hashable, Blocker | None, float]] = {}

    def was_just_sent(self, topic: str, kind: str, request: Hashable) -> bool:
        """Return whether the same request was sent a moment ago."""
        former, _, until_s = self._known.get((topic, kind), (None, None, 0.0))
        return former == request and time.monotonic() < until_s

    def refusal(self, topic: str, kind: str) -> list[Blocker]:
        """Return its refusal, if there was one."""
        blocker = self._known[topic, kind][1]
        return [] if blocker is None else [blocker]

    def put(self, topic: str, kind: str, request: Hashable, blocker: Blocker | None) -> None:
        """Note a request that was sent now."""
        is_final = blocker is not None and not blocker.goes_on
        pause_s = REFUSED_S if is_final else LOOK_AGAIN_S
        self._known[topic, kind] = request, blocker, time.monotonic() + pause_s

    def forget(self, topic: str) -> None:
        """Forget a deleted Topic."""
        for key in [key for key in self._known if key[0] == topic]:
            del self._known[key]


async def write_status(
    services: KafkaServices,
    key: Key,
    topic: TopicInfo,
    decision: TopicDecision,
    *,
    keys: list[str] | None = None,
) -> float | None:
    """Write the status that follows from a decision; return the seconds until the next step.

    Only changes are written, and only to the same object. ``keys``: configuration keys to record as
    managed; None: as before. Raises ``KubeError``.
    """
    # A deletion that will probably be complete in a moment needs no status.
    if (quiet_s := quiet_deletion_s(topic, decision)) > 0:
        return quiet_s
    # The object may have been deleted and created again under the same name.
    stored = services.objects.get(key)
    if stored is None or stored["metadata"]["uid"] != str(topic.uid):
        return None
    former: Json = stored.get("status") or {}
    # A blocked Topic may have withdrawn fields, which must not return from the stored status.
    base = topic.status if decision.blocker is not None else former
    view = dataclasses.replace(topic, status=base)
    await write_topic_status(services, key, view, decision, former=former, keys=keys)
    return RECHECK_S if decision.blocker is not None else None


def unchanged_decision(
    topic: TopicInfo,
    *,
    blocker: Blocker | None = None,
    deletion: DeletionStep | None = None,
    paused: bool = False,
) -> TopicDecision:
    """Return a decision that changes nothing of the topic itself."""
    return TopicDecision(
        tiering_status=topic.tiering_status, blocker=blocker, deletion=deletion, paused=paused
    )
