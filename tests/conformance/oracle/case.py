"""A case: one request in one version, built for each side; and the topics that both sides have."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.conformance.oracle import entities
from tests.conformance.oracle.entities import Fields, Here
from tests.conformance.oracle.sides import SideWorld
from tidemark.wire.framing import encode_request

T0 = 1_700_000_000_000
READ, EMPTY, SINK, COMPACT = "oracle-read", "oracle-empty", "oracle-sink", "oracle-compact"
#: Records are deleted of SHORT; MARKED takes markers of transactions; STORY is what stories write.
SHORT, MARKED, STORY = "oracle-short", "oracle-marked", "oracle-story"
#: Partitions and configuration of each.
TOPICS: Mapping[str, tuple[int, Mapping[str, str]]] = {
    READ: (1, {"retention.ms": "-1"}),
    EMPTY: (2, {}),
    SINK: (1, {"retention.ms": "-1", "max.message.bytes": "5000"}),
    COMPACT: (1, {"cleanup.policy": "compact"}),
    SHORT: (1, {"retention.ms": "-1"}),
    MARKED: (1, {"retention.ms": "-1"}),
    STORY: (1, {"retention.ms": "-1"}),
}
#: Those that hold three records before the first case.
FILLED = (READ, SHORT)
CORRELATION_ID = 7
CLIENT_ID = "oracle"

Build = Callable[[SideWorld, int], Any]
Learn = Callable[[SideWorld, Any], None]


@dataclass(frozen=True, slots=True)
class OracleCase:
    """One request in one version; ``frame`` makes it for a side, ``learn`` hears what the side has
    answered, for the requests after it. ``round``: of the story that it is part of. ``fresh``: on a
    connection of its own."""

    name: str
    api_key: int
    version: int
    frame: Callable[[SideWorld], bytes]
    learn: Learn | None = None
    round: int | None = None
    fresh: bool = False

    @property
    def api(self) -> str:
        """Name of the Api."""
        return self.name.partition(" ")[0]

    @property
    def kind(self) -> str:
        """Name of the case without its version."""
        return re.sub(r" v\d+ ", " ", self.name, count=1)


@dataclass(frozen=True, slots=True)
class Row:
    """A request in several versions: ``build`` gives kio's entity."""

    api: str
    api_key: int
    what: str
    build: Build
    since: int = 0
    fresh: bool = False

    def cases(self, versions: range) -> Iterator[OracleCase]:
        """One for each version that both serve."""
        for version in versions:
            if version >= self.since:
                name = f"{self.api} v{version} {self.what}"
                made = case(name, self.api_key, version, self.build)
                yield replace(made, fresh=self.fresh)


def case(
    name: str, api_key: int, version: int, build: Build, learn: Learn | None = None
) -> OracleCase:
    """Return the case of a kio entity."""
    return OracleCase(name, api_key, version, lambda world: frame_of(build(world, version)), learn)


def frame_of(entity: Any) -> bytes:
    """Return the encoded request with its length."""
    return encode_request(entity, CORRELATION_ID, CLIENT_ID)


def sized(frame: bytes) -> bytes:
    """A frame whose bytes were changed, under its new length."""
    return (len(frame) - 4).to_bytes(4, "big") + frame[4:]


def row(api: str, api_key: int, what: str, fields: Fields, *, since: int = 0) -> Row:
    """A request with these fields, and nothing in the others."""

    def build(world: SideWorld, version: int) -> Any:
        here = Here(world, f"{api} v{version} {what}")
        return entities.request(api_key, version, fields, here)

    return Row(api, api_key, what, build, since)
