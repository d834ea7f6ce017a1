"""The follower's side of a fetch session (KIP-227): what the next request has to name.

A partition is named when what is to be asked of it differs from what the session holds: it was
given a new state, an answer moved its log, its log start became durable. Pure: what is wanted comes
in, what is to be named and what is to be forgotten goes out.
"""

from collections.abc import Iterable, Mapping

from tidemark_broker.replication.fetch_metadata import INITIAL_EPOCH, NO_SESSION, after
from tidemark_broker.replication.following.wire import ForgottenPartition, ReplicaFetchPartition
from tidemark_broker.replication.types import TopicIdPartition


class FetchSessionHandler:
    """What the leader knows of this follower's wishes, as far as its answers prove."""

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self._session_partitions: dict[TopicIdPartition, ReplicaFetchPartition] = {}
        self._renewed: set[TopicIdPartition] = set()

    @property
    def session_partitions(self) -> Mapping[TopicIdPartition, ReplicaFetchPartition]:
        """Every partition that the next request fetches, named or not."""
        return self._session_partitions

    @property
    def is_full(self) -> bool:
        """Must the next request name everything?"""
        return self.epoch == INITIAL_EPOCH

    def reset(self) -> None:
        """An answer was lost or an error came: name everything, in a new session."""
        self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self._session_partitions = {}
        self._renewed = set()

    def renew(self, key: TopicIdPartition) -> None:
        """Name it the next time, though nothing of it may have changed: then it is answered."""
        if key in self._session_partitions:
            self._renewed.add(key)

    def name(
        self, requested: Iterable[ReplicaFetchPartition], forgotten: Iterable[TopicIdPartition]
    ) -> tuple[tuple[ReplicaFetchPartition, ...], tuple[ForgottenPartition, ...]]:
        """What the next request names of ``requested``, and which of ``forgotten`` it must
        forget."""
        named = []
        for each in requested:
            key = (each.topic_id, each.partition)
            if self._session_partitions.get(key) != each or key in self._renewed:
                self._session_partitions[key] = each
                named.append(each)
        self._renewed.clear()
        gone = [key for key in forgotten if self._session_partitions.pop(key, None) is not None]
        return tuple(named), tuple(ForgottenPartition(topic_id=k[0], partition=k[1]) for k in gone)

    def answered(self, session_id: int) -> None:
        """A good answer: go on with its session; without one the next request is full again."""
        if session_id == NO_SESSION:
            self.reset()
        else:
            self.session_id, self.epoch = session_id, after(self.epoch)
