"""``tidemark import``: Topic manifests of what Strimzi describes, or of what is in a cluster."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markup import escape

from tidemark.kafka_client.errors import KafkaError
from tidemark_cli.commands.common import errors, fail
from tidemark_cli.commands.files import write_whole
from tidemark_cli.commands.kafka_access import BootstrapOption, ClientConfigOption, open_access
from tidemark_cli.imports import kafka_topics, strimzi
from tidemark_cli.imports.documents import Document, DocumentError, read
from tidemark_cli.imports.kafka_topics import Existing
from tidemark_cli.imports.manifest_writer import as_yaml
from tidemark_cli.imports.strimzi import Defaults
from tidemark_cli.imports.topics import Imported, NotImported, Target, Wanted, imported, is_internal
from tidemark_operator.controller.events import count
from tidemark_operator.resources.topic import DeletionPolicy


def import_topics(
    strimzi_files: Annotated[
        list[str] | None,
        typer.Option(
            "--strimzi",
            metavar="FILE",
            help="File or folder with Strimzi's KafkaTopic objects, or - for standard input.",
        ),
    ] = None,
    bootstrap: BootstrapOption = "",
    client_config: ClientConfigOption = None,
    topics: Annotated[
        str,
        typer.Option(metavar="REGEX", help="Only topics whose whole name matches."),
    ] = "",
    strimzi_cluster: Annotated[
        str, typer.Option(help="Only topics of this Strimzi cluster (label strimzi.io/cluster).")
    ] = "",
    default_partitions: Annotated[
        int | None, typer.Option(min=1, help="Partitions of KafkaTopics without a number.")
    ] = None,
    default_replicas: Annotated[
        int | None, typer.Option(min=1, help="Replicas of KafkaTopics without a number.")
    ] = None,
    keep_metadata: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Label or annotation of KafkaTopics to copy although its key has a prefix or a "
            "dot.",
        ),
    ] = None,
    drop_metadata: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Label or annotation of KafkaTopics to leave out.",
        ),
    ] = None,
    cluster: Annotated[str, typer.Option(help="Cluster of the Topics.")] = "tidemark",
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace in the manifests. Default: none.")
    ] = "",
    deletion_policy: Annotated[
        Literal["Orphan", "Delete"],
        typer.Option(help="Deletion policy of the Topics."),
    ] = "Orphan",
    output: Annotated[
        Path | None, typer.Option(help="File to write. Default: standard output.")
    ] = None,
) -> None:
    """Write Topic manifests for the topics of a Kafka cluster (--bootstrap) or for Strimzi's
    KafkaTopics (--strimzi). With both, manifests have the topics' ids.

    The manifests adopt the topics. Internal topics, whose names start with two underscores, are
    skipped. Labels and annotations of KafkaTopics are copied if their keys have neither a prefix
    nor a dot (--keep-metadata, --drop-metadata). Fields without a counterpart are reported on
    standard error, and in a comment above the manifest. The exit status is 1 if a topic could not
    be imported; the others are written.
    """
    _check_pattern(topics)
    run = _Run()
    there = _existing(run, bootstrap, client_config, topics) if bootstrap else None
    if strimzi_files:
        defaults = Defaults(partitions=default_partitions, replication_factor=default_replicas)
        metadata = strimzi.MetadataRule(
            kept=frozenset(keep_metadata or ()), dropped=frozenset(drop_metadata or ())
        )
        documents = _kafka_topics(run, strimzi_files, strimzi_cluster, topics)
        found = _of_strimzi(run, documents, defaults, metadata)
        wanted = found if there is None else _identified(run, found, there)
    elif there is not None:
        wanted = _of_cluster(run, there, bootstrap)
    else:
        fail("say what to import: --bootstrap HOST:PORT, or --strimzi FILE")
    target = Target(
        cluster=cluster, namespace=namespace, deletion_policy=DeletionPolicy(deletion_policy)
    )
    made = run.imported(wanted, target)
    _write(output, as_yaml(made))
    run.close(made)
    raise typer.Exit(1 if run.troubles else 0)


class _Run:
    """Says what is left out, and counts what could not be imported."""

    def __init__(self) -> None:
        self.troubles = 0

    def say(self, line: str) -> None:
        """What somebody may want to know."""
        errors.print(escape(line), highlight=False, soft_wrap=True)

    def trouble(self, source: str, why: str) -> None:
        """What is not in the result and should be."""
        self.troubles += 1
        errors.print(
            f"[red]not imported:[/red] {escape(source)}: {escape(why)}",
            highlight=False,
            soft_wrap=True,
        )

    def skip_internal(self, source: str, name: str) -> None:
        """Report a topic that is left out because its records are a program's state."""
        self.say(f"{source}: skipped, since {name} is an internal topic")

    def imported(self, topics: Iterable[Wanted], target: Target) -> list[Imported]:
        """Those that can be: no topic and no object of them twice."""
        found: list[Imported] = []
        sources: dict[tuple[str, str], str] = {}
        for topic in topics:
            try:
                each = imported(topic, target, lambda name: ("object", name) in sources)
            except NotImported as error:
                self.trouble(topic.source, str(error))
                continue
            names = (("topic", topic.name), ("object", each.name))
            twice = next((name for name in names if name in sources), None)
            if twice is not None:
                self.trouble(topic.source, f"{sources[twice]} is {' '.join(twice)}, too")
                continue
            sources.update(dict.fromkeys(names, topic.source))
            for remark in each.remarks:
                self.say(f"{topic.source}: {remark}")
            found.append(each)
        return found

    def close(self, found: Sequence[Imported]) -> None:
        """How many, and what to do with them."""
        adopting = sum(each.adopts for each in found)
        self.say(
            f"{count(len(found), 'Topic')}, {adopting} with the id of the topic that it takes over"
            + (f"; {self.troubles} not imported" if self.troubles else "")
        )
        if adopting < len(found):
            self.say(
                "the others are made anew, or wait for an adoption where their topics exist: see "
                "docs/how-to/migrate.md"
            )


def _kafka_topics(
    run: _Run, paths: Sequence[str], only_cluster: str, pattern: str
) -> list[Document]:
    """Return the KafkaTopics of one Strimzi cluster that describe users' topics."""
    try:
        documents = read(paths)
    except DocumentError as error:
        fail(str(error))
    # Strimzi's other kinds are reported, foreign ones are ignored.
    topics = []
    for document in documents:
        if strimzi.is_topic(document):
            topics.append(document)
        elif strimzi.is_strimzis(document):
            run.say(f"{document.source}: no topic, left out")
    if not topics:
        fail(f"there is no KafkaTopic in {', '.join(paths)} ({count(len(documents), 'object')})")
    found = []
    for document in _of_one_cluster(topics, only_cluster):
        name = strimzi.topic_name(document)
        if not re.fullmatch(pattern or ".*", name):
            continue
        # Before the KafkaTopic is parsed: one that is skipped needs no valid spec.
        if is_internal(name):
            run.skip_internal(document.source, name)
        else:
            found.append(document)
    return found


def _of_strimzi(
    run: _Run, documents: Sequence[Document], defaults: Defaults, metadata: strimzi.MetadataRule
) -> Iterator[Wanted]:
    omitted = Counter(what for document in documents for what in metadata.omitted(document))
    for what, number in sorted(omitted.items()):
        run.say(
            f"{what} of {count(number, 'KafkaTopic')} is not copied: a tool may manage its own "
            "objects by it, and would delete the Topic as one of them; --keep-metadata KEY copies "
            "a key"
        )
    for document in documents:
        try:
            yield strimzi.wanted(document, defaults, metadata)
        except NotImported as error:
            run.trouble(document.source, str(error))


def _of_one_cluster(topics: Sequence[Document], only: str) -> list[Document]:
    """A Cluster of ours is one cluster's."""
    named = strimzi.clusters(topics)
    if only and only not in named:
        fail(f"no KafkaTopic is of the Strimzi cluster {only}; there are {', '.join(named)}")
    if not only and len(named) > 1:
        there = ", ".join(name or "none (no label)" for name in named)
        fail(f"the KafkaTopics are of several clusters, {there}: name one with --strimzi-cluster")
    return [each for each in topics if strimzi.clusters([each]) == [only or named[0]]]


def _check_pattern(topics: str) -> None:
    try:
        re.compile(topics)
    except re.error as error:
        fail(f"--topics {topics!r} is no regular expression: {error}")


def _existing(run: _Run, bootstrap: str, client_config: Path | None, topics: str) -> list[Existing]:
    def tell(done: int, of: int) -> None:
        if of > kafka_topics.PAGE:
            run.say(f"{done:,} of {of:,} topics read")

    access = open_access(bootstrap, client_config)
    try:
        found = kafka_topics.read(access, topics, tell)
    except KafkaError as error:
        fail(f"the cluster at {bootstrap} cannot be read: {error}")
    if not found:
        fail(f"the cluster at {bootstrap} has no topic{f' like {topics}' if topics else ''}")
    return found


def _of_cluster(run: _Run, there: Iterable[Existing], name: str) -> Iterator[Wanted]:
    for each in there:
        if kafka_topics.is_own(each.view):
            run.skip_internal(f"{name}, topic {each.view.name}", each.view.name)
            continue
        try:
            yield kafka_topics.wanted(each, name)
        except NotImported as error:
            run.trouble(f"topic {each.view.name}", str(error))


def _identified(run: _Run, topics: Iterable[Wanted], there: Iterable[Existing]) -> Iterator[Wanted]:
    known = {each.view.name: each for each in there}
    for topic in topics:
        try:
            yield kafka_topics.identified(topic, known)
        except NotImported as error:
            run.trouble(topic.source, str(error))


def _write(path: Path | None, text: str) -> None:
    if path is None:
        print(text, end="")
        return
    try:
        write_whole(path, text.encode())
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}")
