"""Keys that a registry's serializer wrote, compared by their values.

A serializer writes the id of the key's schema before the key. If the schema is registered anew, for
another documentation or after the registry was lost, the same key has other bytes from then on.
Where the topic has a subject for keys, keys are compared without the id. Keys by schemas that write
equal values as other bytes stay different keys.

A key is not looked at one by one: an 8-byte number may begin as if it had an id.
"""

from dataclasses import dataclass, field

from tidemark_pipeline.schemas.avro.encoding import signature
from tidemark_pipeline.schemas.avro.schema import parse_schema
from tidemark_pipeline.schemas.registry.client import NotThere, Reference, Registered, Registry
from tidemark_pipeline.schemas.registry.wire import HEADER_BYTES, MAGIC
from tidemark_pipeline.schemas.values.refused import SchemaRefused

#: Of a subject: the newest ones are asked for.
VERSIONS_MAX = 1_000
_UNFRAMED, _LATEST = 0, 1


@dataclass(slots=True)
class RegistryKeys:
    """Keys of ``subject``. ``known``: by version the schema's id, and its signature."""

    registry: Registry
    subject: str
    known: dict[int, tuple[int, str]] = field(default_factory=dict)

    def refresh(self) -> None:
        """Ask for versions that are new. Raises
        :class:`~tidemark_pipeline.schemas.registry.client.RegistryDown` and RegistryRefused."""
        try:
            versions = self.registry.versions(self.subject)
        except NotThere:
            return
        for version in sorted(versions)[-VERSIONS_MAX:]:
            if version not in self.known:
                found = self.registry.version(Reference("", self.subject, version))
                self.known[version] = found.id, _signature_of(found)

    def sql(self, column: str) -> str:
        """Return an expression that is equal for equal keys, of a column with their bytes."""
        if not self.known:
            return column
        latest = self.known[max(self.known)][1]
        others: dict[str, list[int]] = {}
        for number, found in self.known.values():
            if found != latest:
                others.setdefault(found, []).append(number)
        framed = (
            f"startswith({column}, X'{MAGIC:02X}') AND octet_length({column}) >= {HEADER_BYTES}"
        )
        behind = f"substring({column}, {HEADER_BYTES + 1})"
        number_of = f"substring({column}, 2, {HEADER_BYTES - 1})"
        cases = [f"WHEN NOT ({framed}) THEN concat({_marker(_UNFRAMED)}, {column})"]
        for marker, (_, numbers) in enumerate(sorted(others.items()), _LATEST + 1):
            among = ", ".join(f"X'{number:08X}'" for number in sorted(set(numbers)))
            cases.append(f"WHEN {number_of} IN ({among}) THEN concat({_marker(marker)}, {behind})")
        return f"CASE {' '.join(cases)} ELSE concat({_marker(_LATEST)}, {behind}) END"


def _marker(number: int) -> str:
    return f"X'{number:04X}'"


def _signature_of(found: Registered) -> str:
    if found.kind != "AVRO":
        return found.kind
    try:
        return signature(parse_schema(found.text))
    except (
        SchemaRefused,
        RecursionError,
    ):  # one that refers to others, for example: equal to itself
        return found.text
