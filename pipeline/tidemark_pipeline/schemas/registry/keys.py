"""Comparison by value of keys that a registry's serializer wrote.

A serializer writes the id of the key's schema before the key. If the schema gets another id, for
example with new documentation or after the registry was lost, the same key has other bytes. If the
topic has a subject for keys, keys are compared without the id. Keys of schemas that encode equal
values differently stay different keys.

Only the subject decides, not the bytes of a key: an 8-byte number may look as if it had an id.
"""

from dataclasses import dataclass, field

from tidemark_avro.column_rules import SchemaRefused
from tidemark_avro.schema import parse_schema
from tidemark_avro.signatures import signature
from tidemark_pipeline.schemas.registry.client import (
    Reference,
    Registered,
    Registry,
    SchemaNotFound,
)
from tidemark_pipeline.schemas.registry.wire import HEADER_BYTES, MAGIC

#: Versions of a subject that are read, the newest ones.
VERSIONS_MAX = 1_000
_UNFRAMED, _LATEST = 0, 1


@dataclass(slots=True)
class RegistryKeys:
    """Keys of ``subject``. ``known``: by version the schema's id and signature."""

    registry: Registry
    subject: str
    known: dict[int, tuple[int, str]] = field(default_factory=dict)

    def refresh(self) -> None:
        """Read new versions of the subject.

        Raises :class:`~tidemark_pipeline.schemas.registry.client.RegistryDown` and RegistryRefused.
        """
        try:
            versions = self.registry.versions(self.subject)
        except SchemaNotFound:
            return
        # Versions do not change, so each is read once.
        for version in sorted(versions)[-VERSIONS_MAX:]:
            if version not in self.known:
                registered = self.registry.version(Reference("", self.subject, version))
                self.known[version] = registered.id, _signature_of(registered)

    def sql(self, column: str) -> str:
        """Return an SQL expression over a column of key bytes that has equal values for equal keys.

        It replaces the schema ID by a marker of the encoding. Without known versions it is the
        column.
        """
        if not self.known:
            return column
        # IDs that are not known, such as those of later versions, count as the latest encoding.
        latest = self.known[max(self.known)][1]
        others: dict[str, list[int]] = {}
        for number, encoding in self.known.values():
            if encoding != latest:
                others.setdefault(encoding, []).append(number)
        framed = (
            f"startswith({column}, X'{MAGIC:02X}') AND octet_length({column}) >= {HEADER_BYTES}"
        )
        behind = f"substring({column}, {HEADER_BYTES + 1})"
        number_of = f"substring({column}, 2, {HEADER_BYTES - 1})"
        # Keys without a frame get a marker of their own, so that none equals a framed key.
        cases = [f"WHEN NOT ({framed}) THEN concat({_marker(_UNFRAMED)}, {column})"]
        for marker, (_, numbers) in enumerate(sorted(others.items()), _LATEST + 1):
            among = ", ".join(f"X'{number:08X}'" for number in sorted(set(numbers)))
            cases.append(f"WHEN {number_of} IN ({among}) THEN concat({_marker(marker)}, {behind})")
        return f"CASE {' '.join(cases)} ELSE concat({_marker(_LATEST)}, {behind}) END"


def _marker(number: int) -> str:
    return f"X'{number:04X}'"


def _signature_of(registered: Registered) -> str:
    if registered.kind != "AVRO":
        return registered.kind
    try:
        return signature(parse_schema(registered.text))
    except (SchemaRefused, RecursionError):
        return registered.text  # for example a schema with references: equal to itself only
