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

from tidemark_avro.column_rules import SchemaRefused
from tidemark_pipeline.errors import ExportError
from tidemark_pipeline.schemas.protobuf.descriptors import Messages, compiled
from tidemark_pipeline.schemas.registry.access import UnknownSchemaPolicy
from tidemark_pipeline.schemas.registry.client import (
    Reference,
    Registered,
    Registry,
    SchemaNotFound,
)
from tidemark_pipeline.schemas.sources import SchemaSource, SchemaType

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
        """Query the registry for the schemas of ``ids`` and return them with all known ones, by ID.

        ``ids``: most frequent first, as the number of queries is limited. The value is the reason
        as text if the records of an ID cannot be read.

        Raises :class:`~tidemark_pipeline.schemas.registry.client.RegistryDown`, RegistryRefused,
        and :class:`ExportError` if an unknown ID must stop the job.
        """
        fetched: dict[int, SchemaSource | str] = {}
        missing: dict[int, SchemaSource | str] = {}
        for number in ids[:QUERIES_MAX]:
            try:
                fetched[number] = self._source(self.registry.schema(number))
            except SchemaRefused as error:
                fetched[number] = str(error)
            except SchemaNotFound as error:  # Not cached, as the schema may be registered later.
                missing[number] = self._unknown(number, error)
        for number in ids[QUERIES_MAX:]:
            missing[number] = (
                f"it was not queried: the batch has {len(ids)} unknown ids, and at most "
                f"{QUERIES_MAX} are queried for one batch"
            )
        # The limit is checked before the cache takes the schemas, as they are all sent with one
        # batch.
        size = _size_of(fetched.values())
        if size > CACHED_BYTES_MAX:
            raise ExportError(
                f"the schemas of one batch have {size:,} bytes, and the limit is "
                f"{CACHED_BYTES_MAX:,}. Lower maxOffsetsPerTrigger"
            )
        self.known.update(fetched)
        # The oldest entries are removed first. They are queried again when a record needs them.
        while len(self.known) > CACHED_MAX or _size_of(self.known.values()) > CACHED_BYTES_MAX:
            self.known.popitem(last=False)
        return {**self.known, **fetched, **missing}

    def latest(self, subject: str, message: str = "") -> SchemaSource:
        """Return the latest schema of a subject. Raises :class:`ExportError`."""
        try:
            return self._source(self.registry.latest(subject), message)
        except SchemaNotFound as error:
            raise ExportError(
                f"the schema registry has no subject {subject}. Name another one with the "
                "registry's option subject, or keep the table's columns (evolution=ignore)"
            ) from error
        except SchemaRefused as error:
            raise ExportError(f"the latest schema of {subject}: {error}") from error

    def _unknown(self, number: int, error: SchemaNotFound) -> str:
        if self.registry.access.unknown is UnknownSchemaPolicy.STOP:
            raise ExportError(
                f"schema {number}: the registry does not know it ({error}). To make such records "
                "dead letters, set the registry's option unknown=dead-letter"
            ) from error
        return f"the registry does not know it ({error})"

    def _source(self, registered: Registered, message: str = "") -> SchemaSource:
        """Return a registered schema with all schemas that it references.

        ``message``: full name of the Protobuf message, if known. Raises SchemaRefused.
        """
        if registered.kind not in set(SchemaType):
            raise SchemaRefused(f"schemas of type {registered.kind} are not supported")
        # Workers cannot query the registry, so the source includes everything that it references.
        used = self._referenced(registered.references)
        if registered.kind == SchemaType.AVRO:
            return SchemaSource(
                SchemaType.AVRO,
                registered.text,
                tuple(reference.text for reference in used.values()),
            )
        texts = {name: reference.text for name, reference in used.items()}
        return SchemaSource(
            SchemaType.PROTOBUF,
            descriptors=_descriptors(registered.text, texts).serialized,
            message=message,
        )

    def _referenced(self, references: tuple[Reference, ...]) -> dict[str, Registered]:
        """Return the referenced schemas by name, direct and indirect, in order of dependency.

        Each schema comes after those that it references itself.
        """
        schemas: dict[str, Registered] = {}
        # Subjects and versions that were read, so that shared references are read once.
        visited: set[tuple[str, int]] = set()

        def visit(group: tuple[Reference, ...]) -> None:
            for reference in group:
                # The check precedes the query, so that a cycle of references ends.
                if (reference.subject, reference.version) in visited:
                    continue
                visited.add((reference.subject, reference.version))
                if len(visited) > REFERENCES_MAX:
                    raise SchemaRefused(f"it refers to more than {REFERENCES_MAX} others")
                try:
                    used = self.registry.version(reference)
                except SchemaNotFound as error:
                    raise SchemaRefused(f"it refers to {reference.name}, and {error}") from error
                visit(used.references)
                schemas[reference.name] = used

        visit(references)
        return schemas


def _size_of(schemas: Iterable[SchemaSource | str]) -> int:
    return sum(source.size_bytes for source in schemas if isinstance(source, SchemaSource))


def _descriptors(text: str, used: Mapping[str, str]) -> Messages:
    """Return the Protobuf descriptors of a registered schema and of those that it references.

    ``text``: source text, or Google's serialized descriptor in base64, which needs no compiler.
    ``used``: the same for referenced schemas, by import name.
    """
    own = _serialized(text)
    referenced = {name: _serialized(reference) for name, reference in used.items()}
    if own is None and not any(referenced.values()):
        return compiled(text, used)
    # Texts and descriptors cannot be combined.
    if own is None or not all(referenced.values()):
        raise SchemaRefused("it is registered in one form, and what it refers to in another")
    descriptor_set = descriptor_pb2.FileDescriptorSet()
    for name, file in referenced.items():
        assert file is not None
        file.name = name
        descriptor_set.file.append(file)
    # The schema itself is the last file of the set, which the set's readers rely on.
    own.name = own.name or "schema.proto"
    descriptor_set.file.append(own)
    return Messages(descriptor_set.SerializeToString())


def _serialized(text: str) -> descriptor_pb2.FileDescriptorProto | None:
    try:
        return descriptor_pb2.FileDescriptorProto.FromString(
            base64.b64decode(text.strip(), validate=True)
        )
    except (binascii.Error, ValueError, DecodeError):
        return None
