"""Follower's side of a fetch session (KIP-227): selects the partitions that the next request names.

A partition is named if its request differs from that in the session: its state was changed, a
response moved its log, or its log start became durable. Pure: the desired requests are the input,
the partitions to name and to forget are the output.
"""

from collections.abc import Iterable, Mapping

from tidemark_broker.replication.fetch_metadata import INITIAL_EPOCH, NO_SESSION, after
from tidemark_broker.replication.following.wire import ForgottenPartition, ReplicaFetchPartition
from tidemark_broker.replication.types import TopicIdPartition


class FetchSessionHandler:
    """Session contents as the leader's responses have confirmed them."""

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self._session_partitions: dict[TopicIdPartition, ReplicaFetchPartition] = {}
        self._renewed: set[TopicIdPartition] = set()

    @property
    def session_partitions(self) -> Mapping[TopicIdPartition, ReplicaFetchPartition]:
        """Requests of every partition that the next round fetches, named or not."""
        return self._session_partitions

    @property
    def is_full(self) -> bool:
        """Whether the next request must name everything."""
        return self.epoch == INITIAL_EPOCH

    def reset(self) -> None:
        """Start a new session with a full request, after a lost response or an error."""
        self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self._session_partitions = {}
        self._renewed = set()

    def renew(self, key: TopicIdPartition) -> None:
        """Name the partition in the next request even if it is unchanged, so that it is
        answered.
        """
        if key in self._session_partitions:
            self._renewed.add(key)

    def name(
        self, requested: Iterable[ReplicaFetchPartition], forgotten: Iterable[TopicIdPartition]
    ) -> tuple[tuple[ReplicaFetchPartition, ...], tuple[ForgottenPartition, ...]]:
        """Return what the next request names of ``requested`` and of ``forgotten``."""
        named = []
        for item in requested:
            key = (item.topic_id, item.partition)
            if self._session_partitions.get(key) != item or key in self._renewed:
                self._session_partitions[key] = item
                named.append(item)
        self._renewed.clear()
        gone = [key for key in forgotten if self._session_partitions.pop(key, None) is not None]
        return tuple(named), tuple(ForgottenPartition(topic_id=k[0], partition=k[1]) for k in gone)

    def answered(self, session_id: int) -> None:
        """Continue with the session of a successful response; without one the next request is
        full.
        """
        if session_id == NO_SESSION:
            self.reset()
        else:
            self.session_id, self.epoch = session_id, after(self.epoch)
