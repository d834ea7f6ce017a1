"""Heads, pages and auxiliary objects as a store may give them back.

Each is read or refused as corrupt, and what was read is written and read again as the same.
"""

import copy
import functools
import json
import random
import uuid
from dataclasses import replace
from typing import Any

from tests.fuzz.frames import spoil
from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark.tier.metadata import codec
from tidemark.tier.metadata.codec import ManifestCorrupt
from tidemark.tier.metadata.head import ManifestPage, Mark, PageRef, new_head
from tidemark.tier.metadata.segment import DigestAlgorithm, Digests, SegmentEntry, new_segment
from tidemark.tier.segments import auxiliary
from tidemark.tier.segments.auxiliary import AbortedRanges, Aux
from tidemark.tier.segments.frames import FrameWriter
from tidemark.tiering import Tiering, TieringState

_TOPIC_ID = uuid.UUID(int=1)
_ODD: tuple[object, ...] = (
    None, True, -1, 0, 1.5, 2**63, 2**70, "", "A", "A" * 22, "\ud800", [], {}, [1], [[1, 0]],
)  # fmt: skip


@functools.cache
def sound() -> dict[str, bytes]:
    """One object of each kind."""
    tiering = Tiering(TieringState.ENABLED, 0, None)
    entries = (_segment(10), _segment(20))
    # One object of each kind with every optional field, so that each can be changed.
    page_ref = PageRef(
        name="p", count=2, start_offset=0, first_end_offset_inclusive=4, end_offset_inclusive=9,
        end_leader_epoch=1, size_bytes=200, min_tiered_epoch=0, max_tiered_epoch=0,
        max_timestamp_ms=100,
    )  # fmt: skip
    head = new_head(
        topic="t", topic_id=_TOPIC_ID, partition=0, cluster_id="c", leader_epoch=1,
        tiering=tiering, broker_id=1, log_start_offset=0,
    )  # fmt: skip
    marks = (Mark(1, 2, 3),)
    head = replace(head, entries=entries, pages=(page_ref,), marks=marks, trash=("q",))
    aux = Aux(
        offset_index=bytes(16),
        time_index=bytes(24),
        leader_epochs=b"0\n1\n1 0\n",
        producer_snapshot=b"",
        aborted=AbortedRanges((AbortedTxn(1, 10, 12, 10),), 15),
        pieces=(bytes(32),),
    )
    frames = FrameWriter(None, aux.algorithm, is_compressed=True)
    list(frames.encode([b"records"]))
    return {
        "framed aux": auxiliary.pack(replace(aux, frames=frames.finish())),
        "head": codec.encode_head(head),
        "page": codec.encode_page(ManifestPage("p", "t", _TOPIC_ID, 0, entries)),
        "aux": auxiliary.pack(aux),
    }


def make(rng: random.Random) -> tuple[str, bytes]:
    """Return kind and content of an object."""
    kind = rng.choice(sorted(sound()))
    data = sound()[kind]
    if kind.endswith("aux") or rng.random() < 0.4:
        return kind, spoil(rng, data)
    # Heads and pages are JSON: changing a value reaches more code than changing bytes, which mostly
    # breaks the syntax.
    fields = json.loads(data)
    for _ in range(rng.randint(1, 2)):
        _change(rng, fields)
    return kind, json.dumps(fields).encode()


def check(note: str, data: bytes) -> bool:
    """Read it; whether it was taken."""
    try:
        if note == "head":
            head = codec.decode_head(data, "head")
            # What was accepted must survive a round trip, since leaders rewrite what they read.
            assert codec.decode_head(codec.encode_head(head), "head") == head
        elif note == "page":
            page = codec.decode_page(data, "page")
            assert codec.decode_page(codec.encode_page(page), "page") == page
        else:
            aux = auxiliary.unpack(data, "aux")
            assert auxiliary.unpack(auxiliary.pack(aux), "aux") == aux
    except (ManifestCorrupt, auxiliary.AuxCorrupt):
        return False
    return True


def _change(rng: random.Random, fields: Any) -> None:
    """Change or remove one value, or add an unknown one."""
    here = fields
    # Descend at random until a value is chosen.
    while True:
        if not here:
            return
        key = rng.choice(sorted(here)) if isinstance(here, dict) else rng.randrange(len(here))
        if isinstance(here[key], dict | list) and here[key] and rng.random() < 0.7:
            here = here[key]
            continue
        break
    if rng.random() < 0.2:
        del here[key]
    elif isinstance(here, dict) and rng.random() < 0.1:
        here["unknown"] = 1
    else:
        here[key] = copy.deepcopy(rng.choice(_ODD))


def _segment(start_offset: int) -> SegmentEntry:
    entry = new_segment(
        topic="t", topic_id=_TOPIC_ID, partition=0, segment_id=uuid.UUID(int=start_offset),
        start_offset=start_offset, end_offset_inclusive=start_offset + 9, max_timestamp_ms=100,
        size_bytes=100, broker_id=1, event_time_ms=5, leader_epochs=((1, 0),), leader_epoch=1,
        tiered_epoch=0,
    )  # fmt: skip
    return replace(
        entry, custom_metadata=b"{}", digests=Digests(DigestAlgorithm.BLAKE3, bytes(32), bytes(32))
    )
