"""Fuzz targets: each generates random bytes and states what must be true for any bytes.

A case is stored as text: a line with the target and a note that it understands, then the bytes in
hex.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz import batches, frames, log_folders, tier_objects
from tests.fuzz.agreement import check_batch, check_message

CORPUS = Path(__file__).parent / "corpus"
_MESSAGES = {"request": frames.requests(), "response": frames.responses()}
_HEX_LINE = 100


@dataclass(frozen=True, slots=True)
class FuzzTarget:
    """``make`` gives (note, bytes); ``check`` tells whether such bytes are taken, and raises
    whatever is not meant to be."""

    name: str
    make: Callable[[random.Random], tuple[str, bytes]]
    check: Callable[[str, bytes], bool]


@dataclass(frozen=True, slots=True)
class FuzzCase:
    target: str
    note: str
    data: bytes

    def run(self) -> bool:
        """Whether the bytes were taken; raises what is a finding."""
        return TARGETS[self.target].check(self.note, self.data)

    def text(self) -> str:
        """As it is kept."""
        digits = self.data.hex()
        lines = [digits[at : at + _HEX_LINE] for at in range(0, len(digits), _HEX_LINE)]
        return "\n".join([f"{self.target} {self.note}".strip(), *lines, ""])


def case_of(text: str) -> FuzzCase:
    """The case that was kept so."""
    first, *lines = text.splitlines()
    target, _, note = first.partition(" ")
    return FuzzCase(target, note, bytes.fromhex("".join(lines)))


def new_case(target: FuzzTarget, rng: random.Random) -> FuzzCase:
    """A case by chance."""
    note, data = target.make(rng)
    return FuzzCase(target.name, note, data)


def _make_message(rng: random.Random) -> tuple[str, bytes]:
    kind = rng.choice(sorted(_MESSAGES))
    number = rng.randrange(len(_MESSAGES[kind]))
    body = frames.write(rng, _MESSAGES[kind][number], rng.choice((0.0, 0.02, 0.2)))
    return _name_of(kind, _MESSAGES[kind][number]), frames.spoil(rng, body)


def _name_of(kind: str, entity_type: Any) -> str:
    return f"{kind} {entity_type.__api_key__} {entity_type.__version__}"


def _check_message(note: str, data: bytes) -> bool:
    """Check a message by Api and version, so that a stored case stays valid when a message is
    added in the middle of the list.
    """
    kind = note.split(maxsplit=1)[0]
    for entity_type in _MESSAGES[kind]:
        if _name_of(kind, entity_type) == note:
            return check_message(entity_type, data)
    raise LookupError(f"no message {note}")


def _make_batch(rng: random.Random) -> tuple[str, bytes]:
    payload, count = batches.records(rng, rng.choice((0.0, 0.02, 0.1)))
    return "", batches.spoilt(rng, payload, count, codec=rng.choice((0, 0, 0, 1, 2, 3, 4)))


def _check_batch(_: str, data: bytes) -> bool:
    return check_batch(data)


TARGETS = {
    target.name: target
    for target in (
        FuzzTarget("message", _make_message, _check_message),
        FuzzTarget("batch", _make_batch, _check_batch),
        FuzzTarget("log", log_folders.make, log_folders.check),
        FuzzTarget("tier", tier_objects.make, tier_objects.check),
    )
}
