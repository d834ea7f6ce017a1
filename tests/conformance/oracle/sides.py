"""One of the two brokers that are asked, and what is particular to it: where it listens, the ids
that it has given to the topics, its own."""

import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from tests.unit.api import api_requests as kafka
from tidemark.wire.framing import LENGTH_BYTES, decode_response, encode_request

_TIMEOUT_S = 20.0
_API_VERSIONS = 18
_END = 0x7FFF_0000
CLOSED = b"closed"
SILENT = b"no answer"


@dataclass(slots=True, kw_only=True)
class World:
    """What requests name and answers bear that is another thing on each side."""

    topic_ids: Mapping[str, uuid.UUID] = field(default_factory=dict)
    node_id: int = 0
    leader_epoch: int = 0


class Side:
    """Answers frames. One connection, made anew where the broker has closed it."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.world = World()
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._socket: socket.socket | None = None

    @property
    def address(self) -> str:
        """host:port."""
        return f"{self._address[0]}:{self._address[1]}"

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ask(self, request: Any, api_key: int, version: int) -> Any:
        """The answer to a request that has one."""
        frame = self.exchange(encode_request(request, 1, "oracle"))
        assert frame not in (CLOSED, SILENT), (self.name, api_key, version, frame)
        return decode_response(kafka.answer_type(api_key, version), frame)[1]

    def exchange(self, frame: bytes) -> bytes:
        """The frame that answers one, :data:`CLOSED` or :data:`SILENT`. Another request goes behind
        it: once that is answered the first will not be any more."""
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=_TIMEOUT_S)
        behind = encode_request(kafka.request(_API_VERSIONS, 0), _END, "oracle")
        found = SILENT
        try:
            self._socket.sendall(frame + behind)
            while True:
                answer = self._read()
                if int.from_bytes(answer[:4], "big") == _END:
                    return found
                found = answer
        except TimeoutError:
            self.close()
            return SILENT
        except OSError:
            self.close()
            return found if found is not SILENT else CLOSED

    def _read(self) -> bytes:
        return self._exactly(int.from_bytes(self._exactly(LENGTH_BYTES), "big"))

    def _exactly(self, size: int) -> bytes:
        assert self._socket is not None
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("closed by the broker")
            data += piece
        return data

    # ------------------------------------------------------------ its topics

    def create(self, topics: Mapping[str, tuple[int, Mapping[str, str]]]) -> None:
        """Topics by name: partitions and configuration; returns once they are led."""
        admin = AdminClient({"bootstrap.servers": self.address})
        made = admin.create_topics(
            [
                NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config))
                for name, (partitions, config) in topics.items()
            ]
        )
        for each in made.values():
            each.result(60)
        self._learn(list(topics))

    def _learn(self, names: list[str]) -> None:
        asked = kafka.metadata(12, tuple((name, None) for name in names))
        for _ in range(600):
            answer = self.ask(asked, kafka.METADATA, 12)
            parts = [part for topic in answer.topics for part in topic.partitions]
            if parts and all(part.leader_id >= 0 for part in parts):
                break
        self.world = World(
            topic_ids={topic.name: topic.topic_id for topic in answer.topics},
            node_id=answer.brokers[0].node_id,
            leader_epoch=parts[0].leader_epoch,
        )

    def versions(self) -> dict[int, range]:
        """What it says that it serves."""
        answer = self.ask(kafka.request(_API_VERSIONS, 0), _API_VERSIONS, 0)
        return {
            each.api_key: range(each.min_version, each.max_version + 1) for each in answer.api_keys
        }
