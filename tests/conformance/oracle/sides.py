"""One of the two tested brokers, and its particulars: its address, the ids of its topics, its
own id.
"""

import contextlib
import socket
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from tests.unit.api import api_requests as kafka
from tidemark.wire.framing import LENGTH_BYTES, decode_response, encode_request

#: Long enough for a machine that has other work; what takes so long has no answer.
PATIENCE_S = 30.0
_API_VERSIONS = 18
_END = 0x7FFF_0000
CLOSED = b"closed"
SILENT = b"no answer"
#: A topic's id that no topic has.
NOBODY = uuid.UUID(int=0xDEAD)


@dataclass(slots=True, kw_only=True)
class SideWorld:
    """Values in requests and answers that differ between the sides; ``heard``: those from
    answers of this run.
    """

    topic_ids: Mapping[str, uuid.UUID] = field(default_factory=dict)
    node_id: int = 0
    leader_epoch: int = 0
    heard: dict[str, Any] = field(default_factory=dict)

    def id_of(self, topic: str) -> uuid.UUID:
        """Return the topic's id, or an unused id if there is no such topic."""
        return self.topic_ids.get(topic, NOBODY)


class ComparedBroker:
    """Answers frames over one connection, reopened if the broker has closed it."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.world = SideWorld()
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._socket: socket.socket | None = None

    @property
    def address(self) -> str:
        """Address in the form host:port."""
        return f"{self._address[0]}:{self._address[1]}"

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ask(self, request: Any, api_key: int, version: int) -> Any:
        """The answer to a request that has one."""
        frame = self.exchange(encode_request(request, 1, "oracle"))
        assert frame not in (CLOSED, SILENT), (self.name, api_key, version, frame)
        return decode_response(kafka.answer_type(api_key, version), frame)[1]

    def exchange(self, frame: bytes) -> bytes:
        """Call :meth:`send`, then :meth:`receive`."""
        self.send(frame)
        return self.receive()

    def send(self, frame: bytes) -> None:
        """Another request goes behind it: once that is answered the first will not be any more."""
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=PATIENCE_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The broker answers in order, so the answer to this ApiVersions request proves that the
        # first request has none, as with acks=0.
        behind = encode_request(kafka.request(_API_VERSIONS, 0), _END, "oracle")
        with contextlib.suppress(OSError):  # what was closed meanwhile is seen by who reads
            self._socket.sendall(frame + behind)

    def receive(self, patience_s: float = PATIENCE_S) -> bytes:
        """The frame that answers what was sent, :data:`CLOSED` or :data:`SILENT`."""
        found = SILENT
        assert self._socket is not None
        self._socket.settimeout(patience_s)
        try:
            while True:
                answer = self._read()
                # The correlation id tells the request behind it.
                if int.from_bytes(answer[:4], "big") == _END:
                    return found
                found = answer
        except TimeoutError:
            self.close()
            return SILENT
        # The broker may answer and then close.
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
        for item in made.values():
            item.result(60)
        self.learn(topics)

    def learn(self, names: Iterable[str]) -> None:
        """Their ids, once they are led; and the broker's own."""
        asked = kafka.metadata(12, tuple((name, None) for name in names))
        # New topics have no leader for a moment: 600 tries of 50 ms are 30 s.
        for _ in range(600):
            answer = self.ask(asked, kafka.METADATA, 12)
            parts = [part for topic in answer.topics for part in topic.partitions]
            if parts and all(part.leader_id >= 0 for part in parts):
                break
            time.sleep(0.05)
        self.world = SideWorld(
            topic_ids={topic.name: topic.topic_id for topic in answer.topics},
            node_id=answer.brokers[0].node_id,
            leader_epoch=parts[0].leader_epoch,
        )

    def versions(self) -> dict[int, range]:
        """Return the versions that the side advertises."""
        answer = self.ask(kafka.request(_API_VERSIONS, 0), _API_VERSIONS, 0)
        return {
            api_key.api_key: range(api_key.min_version, api_key.max_version + 1)
            for api_key in answer.api_keys
        }
