"""Segments in the layout of Apache Kafka's plug-in by Aiven, written from its documentation.

``SegmentWriter`` puts the three objects of a segment into a directory. It shares no code with the
reader under test.
"""

import base64
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import cramjam
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)


def kafka_id(value: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Key pair of the plug-in. ``name``: its id."""

    name: str
    private: rsa.RSAPrivateKey = field(
        default_factory=lambda: rsa.generate_private_key(65537, 2048)
    )

    def save(self, path: Path) -> str:
        """Write the private key and return the value of the option ``aivenKeyLocations``."""
        path.write_bytes(
            self.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        return json.dumps({self.name: str(path)})

    def wrap(self, secret: bytes) -> bytes:
        """Encrypt with the public key: OAEP with SHA3-512."""
        numbers = self.private.public_key().public_numbers()
        size = numbers.n.bit_length() // 8
        label = hashlib.sha3_512(b"").digest()
        block = label + bytes(size - len(secret) - 2 * 64 - 2) + b"\1" + secret
        seed = os.urandom(64)
        block = _masked(block, seed)
        message = int.from_bytes(b"\0" + _masked(seed, block) + block, "big")
        return pow(message, numbers.e, numbers.n).to_bytes(size, "big")


def _masked(data: bytes, seed: bytes) -> bytes:
    mask, counter = b"", 0
    while len(mask) < len(data):
        mask += hashlib.sha3_512(seed + counter.to_bytes(4, "big")).digest()
        counter += 1
    return bytes(left ^ right for left, right in zip(data, mask, strict=False))


@dataclass(slots=True, kw_only=True)
class SegmentWriter:
    """Writer of the segments of one partition into ``root``, the bucket's place.

    ``pair``: encrypts; None: in the clear. ``change``: changes the manifest before it is written.
    """

    root: Path
    topic: str = "t"
    topic_id: uuid.UUID = field(default_factory=uuid.uuid4)
    partition: int = 0
    prefix: str = ""
    chunk_bytes: int = 4096
    compress: bool = False
    pair: KeyPair | None = None
    change: Callable[[dict[str, object]], object] = lambda manifest: None

    def write(
        self,
        log: bytes,
        *,
        start: int,
        end: int,
        epochs: Mapping[int, int],
        lineage: Sequence[tuple[int, int]] = (),
        offset_index: bytes = b"",
        time_index: bytes = b"",
        transaction_index: bytes | None = None,
        newest_ms: int = 0,
    ) -> str:
        """Write a segment, and return the path of its objects without suffix.

        ``epochs``: first offset of each leader epoch in it. ``lineage``: the log's epochs, those of
        the segment unless given.
        """
        segment_id = uuid.uuid4()
        data_key, additional = os.urandom(32), os.urandom(32)
        cipher = AESGCM(data_key)

        def encrypted(data: bytes) -> bytes:
            if self.pair is None:
                return data
            nonce = os.urandom(12)
            return nonce + cipher.encrypt(nonce, data, additional)

        # The log, chunk by chunk.
        chunks = [log[i : i + self.chunk_bytes] for i in range(0, len(log), self.chunk_bytes)]
        if self.compress:
            chunks = [bytes(cramjam.zstd.compress(chunk)) for chunk in chunks]
        chunks = [encrypted(chunk) for chunk in chunks]
        checkpoint = "".join(f"{epoch} {at}\n" for epoch, at in lineage or epochs.items())
        count = len(lineage or epochs)
        # The indexes, one behind the other.
        indexes, places = b"", dict[str, object]()
        for name, data in {
            "offset": offset_index,
            "timestamp": time_index,
            "producerSnapshot": b"snapshot",
            "leaderEpoch": f"0\n{count}\n{checkpoint}".encode(),
            "transaction": transaction_index,
        }.items():
            stored = encrypted(data) if data else b""
            places[name] = None if data is None else {"position": len(indexes), "size": len(stored)}
            indexes += stored
        folder = f"{self.prefix}{self.topic}-{kafka_id(self.topic_id)}/{self.partition}"
        place = self.root / folder / f"{start:020d}-{kafka_id(segment_id)}"
        place.parent.mkdir(parents=True, exist_ok=True)
        manifest: dict[str, object] = {
            "version": "1",
            "chunkIndex": self._chunk_index(len(log), list(map(len, chunks))),
            "segmentIndexes": places,
            "compression": self.compress,
            "remoteLogSegmentMetadata": {
                "remoteLogSegmentId": {
                    "topicIdPartition": {
                        "topicId": kafka_id(self.topic_id),
                        "topicPartition": {"topic": self.topic, "partition": self.partition},
                    },
                    "id": kafka_id(segment_id),
                },
                "startOffset": start,
                "endOffset": end,
                "maxTimestampMs": newest_ms,
                "brokerId": 1,
                "eventTimestampMs": 1,
                "segmentLeaderEpochs": {str(epoch): at for epoch, at in epochs.items()},
            },
        }
        if self.pair is not None:
            wrapped = base64.b64encode(self.pair.wrap(data_key)).decode()
            manifest["encryption"] = {
                "dataKey": f"{self.pair.name}:{wrapped}",
                "aad": base64.b64encode(additional).decode(),
            }
        self.change(manifest)
        place.with_suffix(".log").write_bytes(b"".join(chunks))
        place.with_suffix(".indexes").write_bytes(indexes)
        place.with_suffix(".rsm-manifest").write_text(json.dumps(manifest))
        return str(place)

    def _chunk_index(self, log_bytes: int, sizes: list[int]) -> dict[str, object]:
        sizes_of_log = {"originalChunkSize": self.chunk_bytes, "originalFileSize": log_bytes}
        if self.compress:
            packed = base64.b64encode(bytes(cramjam.zstd.compress(_encoded(sizes)))).decode()
            return {"type": "variable", **sizes_of_log, "transformedChunks": packed}
        return {
            "type": "fixed",
            **sizes_of_log,
            "transformedChunkSize": self.chunk_bytes + (28 if self.pair else 0),
            "finalTransformedChunkSize": sizes[-1],
        }


def _encoded(sizes: list[int]) -> bytes:
    """Return the plug-in's list of sizes, with as few bytes for each value as all need."""
    *others, last = sizes
    if not others:
        return (1).to_bytes(4, "big") + last.to_bytes(4, "big")
    base = min(others)
    width = max(1, *((size - base).bit_length() + 7 >> 3 for size in others))
    head = len(sizes).to_bytes(4, "big") + base.to_bytes(4, "big") + bytes([width])
    return (
        head
        + b"".join((size - base).to_bytes(width, "big") for size in others)
        + last.to_bytes(4, "big")
    )
