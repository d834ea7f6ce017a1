"""Cache of the schemas that a job has read, by id and with limits.

The cache belongs to the driver, and its content is sent to the workers with each batch. So all
workers read a batch by the same schemas, even if the registry changes meanwhile.
"""

import base64
import binascii
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from tidemark_pipeline.errors import ExportError
from tidemark_pipeline.schemas.protobuf.descriptors import Messages, compiled
from tidemark_pipeline.schemas.registry.access import Unknown
from tidemark_pipeline.schemas.registry.client import NotThere, Reference, Registered, Registry
from tidemark_pipeline.schemas.sources import SchemaSource, SchemaType
from tidemark_pipeline.schemas.values.schema_errors import SchemaRefused

#: Ids that one batch may query. The less frequent ids behind them count as unknown.
QUERIES_MAX = 1_000
CACHED_MAX = 1_000
CACHED_BYTES_MAX = 32 * 1024 * 1024
#: Other schemas that one refers to, directly or not.
REFERENCES_MAX = 200


@dataclass(slots=True)
class Schemas:
    """Schemas of a job.

    ``known``: by id the schema, or the reason why its records cannot be read.
    """

    registry: Registry
    known: "OrderedDict[int, SchemaSource | str]" = field(default_factory=OrderedDict)

    def learn(self, ids: Sequence[int]) -> Mapping[int, SchemaSource | str]:
        """Query the schemas of ``ids``, the most frequent first, and return them with all known
        ones.

        Raises :class:`~tidemark_pipeline.schemas.registry.client.RegistryDown`, RegistryRefused,
        and :class:`ExportError` if an unknown id must stop the job.
        """
        found: dict[int, SchemaSource | str] = {}
        missing: dict[int, SchemaSource | str] = {}
        for number in ids[:QUERIES_MAX]:
            try:
                found[number] = self._fetch(number)
            except NotThere as error:  # Not cached, as the schema may be registered later.
                missing[number] = self._unknown(number, error)
        for number in ids[QUERIES_MAX:]:
            missing[number] = (
                f"it was not queried: the batch has {len(ids)} unknown ids, and at most "
                f"{QUERIES_MAX} are queried for one batch"
            )
        # The limit is checked before the cache takes the schemas, as they are all sent with one
        # batch.
        self._check_size(found.values())
        self.known.update(found)
        # The oldest entries are removed first. They are queried again when a record needs them.
        while len(self.known) > CACHED_MAX or self._size() > CACHED_BYTES_MAX:
            self.known.popitem(last=False)
        return {**self.known, **found, **missing}

    def latest(self, subject: str, message: str = "") -> SchemaSource:
        """Return the latest schema of a subject. Raises :class:`ExportError`."""
        try:
            return self._source(self.registry.latest(subject), message)
        except NotThere as error:
            raise ExportError(
                f"the schema registry has no subject {subject}. Name another one with the "
                "registry's option subject, or keep the table's columns (evolution=ignore)"
            ) from error
        except SchemaRefused as error:
            raise ExportError(f"the latest schema of {subject}: {error}") from error

    def _fetch(self, number: int) -> SchemaSource | str:
        try:
            return self._source(self.registry.schema(number))
        except SchemaRefused as error:
            return str(error)

    def _unknown(self, number: int, error: NotThere) -> str:
        if self.registry.access.unknown is Unknown.STOP:
            raise ExportError(
                f"schema {number}: the registry does not know it ({error}). To make such records "
                "dead letters, set the registry's option unknown=dead-letter"
            ) from error
        return f"the registry does not know it ({error})"

    def _source(self, found: Registered, message: str = "") -> SchemaSource:
        """Return a registered schema with all schemas that it references. Raises SchemaRefused."""
        if found.kind not in set(SchemaType):
            raise SchemaRefused(f"schemas of type {found.kind} are not supported")
        used = self._referenced(found.references)
        if found.kind == SchemaType.AVRO:
            return SchemaSource(
                SchemaType.AVRO, found.text, tuple(reference.text for reference in used.values())
            )
        texts = {name: reference.text for name, reference in used.items()}
        return SchemaSource(
            SchemaType.PROTOBUF,
            descriptors=_descriptors(found.text, texts).serialized,
            message=message,
        )

    def _referenced(self, references: tuple[Reference, ...]) -> dict[str, Registered]:
        """Return the referenced schemas by name, each after those that it references itself."""
        found: dict[str, Registered] = {}
        begun: set[tuple[str, int]] = set()

        def visit(several: tuple[Reference, ...]) -> None:
            for reference in several:
                # The check precedes the query, so that a cycle of references ends.
                if (reference.subject, reference.version) in begun:
                    continue
                begun.add((reference.subject, reference.version))
                if len(begun) > REFERENCES_MAX:
                    raise SchemaRefused(f"it refers to more than {REFERENCES_MAX} others")
                try:
                    used = self.registry.version(reference)
                except NotThere as error:
                    raise SchemaRefused(f"it refers to {reference.name}, and {error}") from error
                visit(used.references)
                found[reference.name] = used

        visit(references)
        return found

    def _check_size(self, found: Iterable[SchemaSource | str]) -> None:
        size = sum(source.size_bytes for source in found if isinstance(source, SchemaSource))
        if size > CACHED_BYTES_MAX:
            raise ExportError(
                f"the schemas of one batch have {size:,} bytes, and the limit is "
                f"{CACHED_BYTES_MAX:,}. Lower maxOffsetsPerTrigger"
            )

    def _size(self) -> int:
        return sum(s.size_bytes for s in self.known.values() if isinstance(s, SchemaSource))


def _descriptors(text: str, used: Mapping[str, str]) -> Messages:
    """Return the descriptors of a schema that is registered as text or as base64.

    Registries also store Google's serialized descriptor in base64, for which no compiler runs.
    """
    own = _serialized(text)
    others = {name: _serialized(reference) for name, reference in used.items()}
    if own is None and not any(others.values()):
        return compiled(text, used)
    # Texts and descriptors cannot be combined.
    if own is None or not all(others.values()):
        raise SchemaRefused("it is registered in one form, and what it refers to in another")
    found = descriptor_pb2.FileDescriptorSet()
    for name, other in others.items():
        assert other is not None
        other.name = name
        found.file.append(other)
    # The schema itself is the last file of the set, which the set's readers rely on.
    own.name = own.name or "schema.proto"
    found.file.append(own)
    return Messages(found.SerializeToString())


def _serialized(text: str) -> descriptor_pb2.FileDescriptorProto | None:
    try:
        return descriptor_pb2.FileDescriptorProto.FromString(
            base64.b64decode(text.strip(), validate=True)
        )
    except (binascii.Error, ValueError, DecodeError):
        return None
