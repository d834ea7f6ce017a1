"""Descriptors of a Protobuf schema, from a descriptor set or the text of ``.proto`` files.

Google's library reads descriptors. Its compiler creates them from text, which may come from any
producer. So the compiler runs in a process of its own with a time limit.
"""

import importlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pool import Default as default_pool
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from tidemark.scratch import ScratchFolder
from tidemark_avro.column_rules import SchemaRefused

SET_BYTES_MAX = 4 * 1024 * 1024
TEXT_BYTES_MAX = 1024 * 1024
_COMPILE_S = 60.0
_NAME = "schema.proto"
#: Folder of Google's well-known types. Every compiler has them, so a set may omit them.
_WELL_KNOWN = "google/protobuf/"


@dataclass(frozen=True, slots=True)
class Messages:
    """A FileDescriptorSet in ``serialized``, with the schema's own file last."""

    serialized: bytes

    def pool(self) -> tuple[DescriptorPool, str]:
        """Return a descriptor pool with all files, and the name of the schema's own file.

        Raises :class:`SchemaRefused`.
        """
        if len(self.serialized) > SET_BYTES_MAX:
            raise SchemaRefused(f"the descriptors have more than {SET_BYTES_MAX} bytes")
        try:
            descriptor_set = descriptor_pb2.FileDescriptorSet.FromString(self.serialized)
        except DecodeError as error:
            raise SchemaRefused(f"no set of descriptors: {error}") from error
        if not descriptor_set.file:
            raise SchemaRefused("no set of descriptors: there is no file in it")
        # A pool of its own, as two schemas may use one file name for different files.
        pool = DescriptorPool()
        known = {file.name: file for file in descriptor_set.file}
        try:
            for name in known:
                _add(pool, name, known, set())
        except (TypeError, ValueError, KeyError, RecursionError) as error:
            raise SchemaRefused(f"the descriptors do not hold: {error}") from error
        return pool, descriptor_set.file[-1].name


def _add(
    pool: DescriptorPool,
    name: str,
    known: Mapping[str, descriptor_pb2.FileDescriptorProto],
    done: set[str],
) -> None:
    """Add a file to the pool, after the files that it imports.

    ``known``: files of the schema by name. ``done``: names that were added already.
    """
    if name in done:
        return
    # Marked before its imports are added, so that a cycle ends. The pool then rejects the cycle.
    done.add(name)
    file = known.get(name) or _well_known(name)
    for imported in file.dependency:
        _add(pool, imported, known, done)
    pool.Add(file)  # A second addition of an identical file changes nothing.


def _well_known(name: str) -> descriptor_pb2.FileDescriptorProto:
    # The name becomes a module name, so it must not leave the folder of the well-known types.
    if not name.startswith(_WELL_KNOWN) or ".." in name:
        raise KeyError(f"{name} is imported and not there (protoc --include_imports)")
    module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    try:  # Generated modules add their file to the default pool on import.
        importlib.import_module(module)
    except ImportError as error:
        raise KeyError(f"{name} is imported and not there") from error
    file = descriptor_pb2.FileDescriptorProto()
    default_pool().FindFileByName(name).CopyToProto(file)
    return file


def by_name(messages: Messages, name: str = "") -> Descriptor:
    """Return the descriptor of a message by full name, or the file's only one without a name.

    Raises :class:`SchemaRefused`.
    """
    pool, file = messages.pool()
    if name:
        try:
            return pool.FindMessageTypeByName(name)
        except KeyError as error:
            raise SchemaRefused(f"there is no message {name} among the descriptors") from error
    by_short_name = pool.FindFileByName(file).message_types_by_name
    if len(by_short_name) != 1:
        names = ", ".join(message.full_name for message in by_short_name.values()) or "none"
        raise SchemaRefused(f"name the message, of {names}")
    return next(iter(by_short_name.values()))


def by_indexes(messages: Messages, indexes: Sequence[int]) -> Descriptor:
    """Return the descriptor of a message by its path in the file.

    ``indexes``: position of the outermost message in the file, then of each nested one. This is how
    Confluent's serializer names a message. Raises :class:`SchemaRefused`.
    """
    pool, file = messages.pool()
    # The file's proto lists its messages by position.
    proto = descriptor_pb2.FileDescriptorProto()
    pool.FindFileByName(file).CopyToProto(proto)
    names = [proto.package] if proto.package else []
    level = proto.message_type
    for index in indexes:
        if not 0 <= index < len(level):
            raise SchemaRefused(f"the schema has no message {list(indexes)}")
        names.append(level[index].name)
        level = level[index].nested_type
    return pool.FindMessageTypeByName(".".join(names))


def compiled(text: str, imports: Mapping[str, str] | None = None) -> Messages:
    """Compile the text of a ``.proto`` file into descriptors.

    ``imports``: texts of the imported files by import name. Raises :class:`SchemaRefused`.
    """
    sources = {**(imports or {}), _NAME: text}
    if sum(len(text.encode()) for text in sources.values()) > TEXT_BYTES_MAX:
        raise SchemaRefused(f"the schema has more than {TEXT_BYTES_MAX} bytes")
    with ScratchFolder("proto") as folder:
        for file_name, source in sources.items():
            # Names come from the registry and must not lead out of the temporary folder.
            pure = PurePosixPath(file_name)
            if pure.is_absolute() or ".." in pure.parts:
                raise SchemaRefused(f"the schema imports {file_name!r}")
            place = folder / "files" / pure
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(source, encoding="utf-8")
        return _protoc(folder / "files", _NAME)


def compiled_file(path: Path) -> Messages:
    """Compile a file, which may import files of its folder. Raises :class:`SchemaRefused`."""
    return _protoc(path.resolve().parent, path.name)


def _protoc(folder: Path, name: str) -> Messages:
    """Compile a file of ``folder`` with protoc in a separate process, with a time limit.

    Raises :class:`SchemaRefused`.
    """
    # ``--include_imports`` adds the descriptors of imported files to the output.
    with ScratchFolder("protoc") as scratch:
        output = scratch / "set"
        command = [
            *(sys.executable, "-m", "grpc_tools.protoc", "--include_imports"),
            *(f"--proto_path={folder}", f"--proto_path={files('grpc_tools') / '_proto'}"),
            *(f"--descriptor_set_out={output}", name),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_COMPILE_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise SchemaRefused(f"protoc needs more than {_COMPILE_S:.0f} s for it") from error
        if done.returncode:
            # The message becomes part of an error, so it is cut.
            why = " ".join(done.stderr.split())[:500]
            raise SchemaRefused(f"protoc refuses it: {why}")
        return Messages(output.read_bytes())
