"""Map of each key to the offset of its last record, in bounded memory (``SkimpyOffsetMap``).

It is one anonymous mapping with 24 bytes for each slot: a 16-byte hash instead of the key, and 8
bytes for the offset. The hash is keyed with a secret of the process. So a client that chooses keys
can neither make two of them collide, which would lose a record, nor direct them all into the same
slots. Pages without keys take no memory, and :meth:`OffsetMap.close` returns all of it.
"""

import mmap
import os
from hashlib import blake2b

_HASH_BYTES = 16
_OFFSET_BYTES = 8
SLOT_BYTES = _HASH_BYTES + _OFFSET_BYTES
_EMPTY = bytes(_HASH_BYTES)
#: Distant slots that are probed before neighbours are: in a full map, probing only neighbours would
#: take fifty probes to find that a key is absent.
_LEAPS = 8
_SECRET = os.urandom(_HASH_BYTES)


class OffsetMap:
    """Offsets by key, for one thread at a time.

    ``memory_bytes`` is the total size; ``load_factor`` limits the fill level.
    """

    def __init__(self, memory_bytes: int, load_factor: float) -> None:
        self._slots = max(memory_bytes // SLOT_BYTES, 2)
        self._end = self._slots * SLOT_BYTES
        self._memory = mmap.mmap(-1, self._end)
        self._hash = blake2b(digest_size=_HASH_BYTES, key=_SECRET)
        self._keys_max = min(max(int(self._slots * load_factor), 1), self._slots - 1)
        self._keys = 0
        #: Last offset that was examined, with or without a key; -1: none was.
        self.latest_offset = -1

    def __len__(self) -> int:
        return self._keys

    @property
    def is_full(self) -> bool:
        """Whether no other key may be added."""
        return self._keys >= self._keys_max

    @property
    def utilization(self) -> float:
        """Share of slots that are used, 0 to 1."""
        return self._keys / self._slots

    def put(self, key: bytes, offset: int) -> None:
        """Set the offset of the last record of ``key``. Offsets rise from call to call."""
        digest = self._digest(key)
        at = self._find(digest)
        self._keys += self._memory[at : at + _HASH_BYTES] == _EMPTY
        self._memory[at : at + SLOT_BYTES] = digest + offset.to_bytes(_OFFSET_BYTES, "big")
        self.latest_offset = offset

    def get(self, key: bytes) -> int:
        """Return the last offset of ``key``, or -1."""
        digest = self._digest(key)
        at = self._find(digest)
        if self._memory[at : at + _HASH_BYTES] == _EMPTY:
            return -1
        return int.from_bytes(self._memory[at + _HASH_BYTES : at + SLOT_BYTES], "big")

    def close(self) -> None:
        self._memory.close()

    def _digest(self, key: bytes) -> bytes:
        state = self._hash.copy()
        state.update(key)
        return state.digest()

    def _find(self, digest: bytes) -> int:
        """Return the byte position of the key's slot, or of the empty slot where it belongs.

        ``digest``: hash of the key. A slot always exists, because the map never fills completely.
        """
        memory, slots = self._memory, self._slots
        number = int.from_bytes(digest, "big")
        slot, leap = number % slots, 1 + (number >> 64) % (slots - 1)
        # Double hashing: the high bits give each key its own sequence of slots.
        for _ in range(_LEAPS):
            at = slot * SLOT_BYTES
            found = memory[at : at + _HASH_BYTES]
            if found in (digest, _EMPTY):
                return at
            slot = (slot + leap) % slots
        # Then linear probing, which reads neighbouring memory.
        at = slot * SLOT_BYTES
        while memory[at : at + _HASH_BYTES] not in (digest, _EMPTY):
            at += SLOT_BYTES
            if at == self._end:
                at = 0
        return at
