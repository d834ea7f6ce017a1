"""Of each key the offset of its last record, in memory that is bounded (``SkimpyOffsetMap``).

One anonymous mapping of 24 bytes a slot: 16 of a hash in place of the key, 8 of the offset. The
hash is keyed with a secret of the process: whoever chooses keys can neither have two of them count
as one, which would lose a record, nor have them all fall into the same slots. A page that no key
falls into takes no memory, and the whole goes back to the system with :meth:`OffsetMap.close`.
"""

import mmap
import os
from hashlib import blake2b

_HASH_BYTES = 16
_OFFSET_BYTES = 8
SLOT_BYTES = _HASH_BYTES + _OFFSET_BYTES
_EMPTY = bytes(_HASH_BYTES)
#: Slots that are tried far from each other before neighbours are: a full map of neighbours only
#: would take fifty looks to find that a key is not there.
_LEAPS = 8
_SECRET = os.urandom(_HASH_BYTES)


class OffsetMap:
    """One thread at a time. ``memory_bytes`` is all that it takes; ``load_factor``: how full it
    may become."""

    def __init__(self, memory_bytes: int, load_factor: float) -> None:
        self._slots = max(memory_bytes // SLOT_BYTES, 2)
        self._end = self._slots * SLOT_BYTES
        self._memory = mmap.mmap(-1, self._end)
        self._hash = blake2b(digest_size=_HASH_BYTES, key=_SECRET)
        self._keys_max = min(max(int(self._slots * load_factor), 1), self._slots - 1)
        self._keys = 0
        #: The last offset that was looked at, with a key or without; -1: none was.
        self.latest_offset = -1

    def __len__(self) -> int:
        return self._keys

    @property
    def is_full(self) -> bool:
        """No other key may be put."""
        return self._keys >= self._keys_max

    @property
    def utilization(self) -> float:
        """How much of the slots is taken, 0 to 1."""
        return self._keys / self._slots

    def put(self, key: bytes, offset: int) -> None:
        """The last record of ``key`` is at ``offset``; offsets rise from call to call."""
        digest = self._digest(key)
        at = self._find(digest)
        self._keys += self._memory[at : at + _HASH_BYTES] == _EMPTY
        self._memory[at : at + SLOT_BYTES] = digest + offset.to_bytes(_OFFSET_BYTES, "big")
        self.latest_offset = offset

    def get(self, key: bytes) -> int:
        """The offset that was put for ``key`` last; -1 where none was."""
        digest = self._digest(key)
        at = self._find(digest)
        if self._memory[at : at + _HASH_BYTES] == _EMPTY:
            return -1
        return int.from_bytes(self._memory[at + _HASH_BYTES : at + SLOT_BYTES], "big")

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()

    def _digest(self, key: bytes) -> bytes:
        state = self._hash.copy()
        state.update(key)
        return state.digest()

    def _find(self, digest: bytes) -> int:
        """Where the hash stands, or the empty slot where it belongs: there always is one."""
        memory, slots = self._memory, self._slots
        number = int.from_bytes(digest, "big")
        slot, leap = number % slots, 1 + (number >> 64) % (slots - 1)
        for _ in range(_LEAPS):
            at = slot * SLOT_BYTES
            found = memory[at : at + _HASH_BYTES]
            if found in (digest, _EMPTY):
                return at
            slot = (slot + leap) % slots
        at = slot * SLOT_BYTES
        while memory[at : at + _HASH_BYTES] not in (digest, _EMPTY):
            at += SLOT_BYTES
            if at == self._end:
                at = 0
        return at
