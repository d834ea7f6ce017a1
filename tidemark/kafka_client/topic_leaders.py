"""Leaders of one topic's partitions, for clients that write or read its records."""

import asyncio
import time
import uuid
from collections.abc import Mapping

from tidemark.backoff import Backoff
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.client import KafkaClient
from tidemark.kafka_client.errors import ClusterRefused, KafkaError, Unreachable
from tidemark.kafka_client.offsets import list_offsets
from tidemark.kafka_client.values import RequestFailure

#: Time for which a failing request to a leader is repeated.
PATIENCE_S = 60.0
#: Pauses between repetitions.
RETRY = Backoff(first_s=0.1, most_s=2.0)


class UnknownTopic(KafkaError):
    """The topic does not exist, or this client may not see it."""


class TopicLeaders:
    """Leader of each partition as the cluster last reported it; :meth:`refresh` reads it again."""

    def __init__(self, client: KafkaClient, topic: str) -> None:
        self.client = client
        self.topic = topic
        self.topic_id = uuid.UUID(int=0)
        #: Leader by partition, -1 if it has none.
        self.of: dict[int, int] = {}
        self._admin = Admin(client)

    async def refresh(self) -> None:
        """Read the leaders and the addresses of all brokers. Raises ``KafkaError``."""
        await self._admin.describe_cluster()
        view = (await self._admin.topics([self.topic])).get(self.topic)
        if view is None:
            raise UnknownTopic(f"topic {self.topic} does not exist")
        # Another topic of the same name has other offsets, so this client cannot continue.
        if self.of and view.topic_id != self.topic_id:
            raise UnknownTopic(f"topic {self.topic} was deleted and created again")
        self.topic_id = view.topic_id
        self.of = {partition.partition: partition.leader for partition in view.partitions}

    def check(self, partitions: list[int]) -> None:
        """Raise :class:`UnknownTopic` unless the topic has all of ``partitions``."""
        missing = [partition for partition in partitions if partition not in self.of]
        if missing:
            raise UnknownTopic(
                f"topic {self.topic} has no partition {missing[0]}: its partitions are 0 to "
                f"{max(self.of, default=-1)}"
            )

    def leader(self, partition: int) -> int:
        """Return the leader of a partition. Raises Unreachable if it has none."""
        if self.of.get(partition, -1) < 0:
            raise Unreachable(f"partition {partition} of {self.topic} has no leader")
        return self.of[partition]

    async def offsets(
        self, timestamps: Mapping[int, int], *, committed: bool = False
    ) -> dict[int, int]:
        """Return the offset of a timestamp by partition (ListOffsets); -1 means none.

        ``timestamps``: Unix time in ms, or a special value of :mod:`values`. ``committed``: LATEST
        is the last stable offset. Requests are repeated while a partition has no leader. Raises
        ``KafkaError``.
        """
        found: dict[int, int] = {}
        deadline = time.monotonic() + PATIENCE_S
        pause = RETRY
        # A partition that has an answer is not requested again.
        while missing := [partition for partition in timestamps if partition not in found]:
            problem = ""
            for leader in {self.of[partition] for partition in missing}:
                named = {
                    (self.topic, partition): timestamps[partition]
                    for partition in missing
                    if self.of[partition] == leader
                }
                try:
                    self.leader(next(partition for _, partition in named))
                    answers = await list_offsets(self.client, leader, named, committed=committed)
                except Unreachable as error:
                    problem = str(error)
                    continue
                for (_, partition), answer in answers.items():
                    if not isinstance(answer, RequestFailure):
                        found[partition] = answer.offset
                    elif answer.code.retriable:
                        problem = f"partition {partition} of {self.topic}: {answer}"
                    else:
                        raise ClusterRefused(f"partition {partition} of {self.topic}: {answer}")
            if problem:
                if time.monotonic() > deadline:
                    raise Unreachable(problem)
                pause = pause.failed(time.monotonic())
                await asyncio.sleep(pause.pause_s(pause.failures))
                await self.refresh()
        return found
