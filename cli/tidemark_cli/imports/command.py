"""``tidemark import``: write manifests for Strimzi's objects or a Kafka cluster's topics."""

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
import yaml
from rich.markup import escape

from tidemark.kafka_client.errors import KafkaError
from tidemark.message_text import count
from tidemark_cli.common import errors, fail, fail_on, write_atomically
from tidemark_cli.imports import kafka_topics, strimzi
from tidemark_cli.imports.documents import Document, DocumentError, read
from tidemark_cli.imports.kafka_topics import ExistingTopic
from tidemark_cli.imports.strimzi import Defaults, MetadataRule
from tidemark_cli.imports.strimzi_listeners import EquivalentValues, equivalent_values
from tidemark_cli.imports.strimzi_users import user_manifest
from tidemark_cli.imports.topics import (
    ImportedManifest,
    ImportedTopic,
    ImportTarget,
    NotImported,
    is_internal,
    to_manifest,
)
from tidemark_cli.kafka_access import BootstrapOption, ClientConfigOption, open_access
from tidemark_operator.resources.topic import DeletionPolicyName

#: Strimzi's kinds that are imported.
_KINDS = ("KafkaTopic", "KafkaUser", "Kafka")


def import_topics(
    strimzi_files: Annotated[
        list[str] | None,
        typer.Option(
            "--strimzi",
            metavar="FILE",
            help="File or folder with Strimzi's KafkaTopic, KafkaUser and Kafka objects, or - for "
            "standard input.",
        ),
    ] = None,
    bootstrap: BootstrapOption = "",
    client_config: ClientConfigOption = None,
    topics: Annotated[
        str,
        typer.Option(metavar="REGEX", help="Only topics whose whole name matches."),
    ] = "",
    strimzi_cluster: Annotated[
        str,
        typer.Option(help="Only objects of this Strimzi cluster (label strimzi.io/cluster)."),
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
            help="Label or annotation of Strimzi's objects to copy although its key has a prefix "
            "or a dot.",
        ),
    ] = None,
    drop_metadata: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Label or annotation of Strimzi's objects to leave out.",
        ),
    ] = None,
    new_topics: Annotated[
        bool,
        typer.Option(
            "--new-topics",
            help="Create topics on Tidemark's brokers instead of adopting the existing ones. "
            "Records are copied separately.",
        ),
    ] = False,
    cluster: Annotated[str, typer.Option(help="Cluster of the objects.")] = "tidemark",
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
    """Write manifests for the topics of a Kafka cluster (--bootstrap) or for Strimzi's
    KafkaTopics and KafkaUsers (--strimzi). With both, Topics have the topics' ids.

    Topics adopt the existing topics, unless --new-topics is given. Internal topics, whose names
    start with two underscores, are skipped. Users work only on Tidemark's own brokers. They name
    Secrets, which the printed commands copy. For a Kafka object, a comment contains values of the
    Helm chart with the same listeners.

    Labels and annotations are copied if their keys have neither a prefix nor a dot
    (--keep-metadata, --drop-metadata). Fields without a counterpart are reported on standard error,
    and in a comment above the manifest. The exit status is 1 if an object could not be imported;
    the others are written.
    """
    _check_pattern(topics)
    run = _Run()
    target = ImportTarget(
        cluster=cluster,
        namespace=namespace,
        deletion_policy=DeletionPolicyName(deletion_policy),
        creates_topics=new_topics,
    )
    users: list[ImportedManifest] = []
    comments = ""
    # The cluster is read first: with both sources its topic ids complete the KafkaTopics.
    existing = _existing(run, bootstrap, client_config, topics) if bootstrap else None
    if strimzi_files:
        defaults = Defaults(partitions=default_partitions, replication_factor=default_replicas)
        metadata = MetadataRule(
            kept=frozenset(keep_metadata or ()), dropped=frozenset(drop_metadata or ())
        )
        objects = _strimzi_objects(run, strimzi_files, strimzi_cluster)
        kafka_topics = _selected(run, objects["KafkaTopic"], topics)
        _report_metadata(run, [*kafka_topics, *objects["KafkaUser"]], metadata)
        strimzi_topics = _of_strimzi(run, kafka_topics, defaults, metadata)
        imported_topics = (
            strimzi_topics if existing is None else _identified(run, strimzi_topics, existing)
        )
        comments = _listeners(run, objects["Kafka"])
        users = run.users_of(objects["KafkaUser"], target, metadata)
    elif existing is not None:
        imported_topics = _of_cluster(run, existing, bootstrap)
    else:
        fail("no source: add --bootstrap HOST:PORT or --strimzi FILE")
    # The topics are generators, so their errors are reported here.
    manifests = run.manifests_of(imported_topics, target)
    # Written even if some objects failed; each of those was reported, and the status is 1.
    _write(output, comments + as_yaml([*manifests, *users]))
    run.close(manifests, users, creates_topics=new_topics)
    raise typer.Exit(1 if run.troubles else 0)


class _Run:
    """Report of a run: prints what is left out and counts objects that could not be imported."""

    def __init__(self) -> None:
        self.troubles = 0

    def say(self, line: str) -> None:
        """Print a remark on standard error."""
        errors.print(escape(line), soft_wrap=True)

    def trouble(self, source: str, why: str) -> None:
        """Report and count an object that could not be imported."""
        self.troubles += 1
        errors.print(
            f"[red]not imported:[/red] {escape(source)}: {escape(why)}",
            soft_wrap=True,
        )

    @contextmanager
    def of_source(self, source: str) -> Iterator[None]:
        """Report the object of a source as a trouble if it cannot be imported."""
        try:
            yield
        except NotImported as error:
            self.trouble(source, str(error))

    def note(self, source: str, remarks: Iterable[str]) -> None:
        """Print remarks on an object that is imported."""
        for remark in remarks:
            self.say(f"{source}: {remark}")

    def skip_internal(self, source: str, name: str) -> None:
        """Report a topic that is left out because its records are a program's state."""
        self.say(f"{source}: skipped, since {name} is an internal topic")

    def manifests_of(
        self, topics: Iterable[ImportedTopic], target: ImportTarget
    ) -> list[ImportedManifest]:
        """Return the manifests of the topics that can be imported; report the others.

        Each Kafka topic and each object name occurs once.
        """
        manifests: list[ImportedManifest] = []
        sources: dict[tuple[str, str], str] = {}
        for topic in topics:
            try:
                result = to_manifest(topic, target, lambda name: ("object", name) in sources)
            except NotImported as error:
                self.trouble(topic.source, str(error))
                continue
            # Two sources may describe one topic, or need one object name: the first one wins.
            names = (("topic", topic.name), ("object", result.name))
            twice = next((name for name in names if name in sources), None)
            if twice is not None:
                self.trouble(topic.source, f"{sources[twice]} also is {' '.join(twice)}")
                continue
            sources.update(dict.fromkeys(names, topic.source))
            self.note(topic.source, result.remarks)
            manifests.append(result)
        return manifests

    def users_of(
        self, documents: Sequence[Document], target: ImportTarget, metadata: MetadataRule
    ) -> list[ImportedManifest]:
        """Return the manifests of the KafkaUsers that can be imported; report the others."""
        manifests: dict[str, ImportedManifest] = {}
        for document in documents:
            try:
                user = user_manifest(document, target, metadata)
            except NotImported as error:
                self.trouble(document.source, str(error))
                continue
            # Strimzi's user names can differ from object names, so two may need one User.
            if user.name in manifests:
                self.trouble(user.source, f"{manifests[user.name].source} also is {user.name}")
                continue
            manifests[user.name] = user
            self.note(user.source, user.remarks)
            for command in user.commands:
                self.say(f"  {command}")
        return list(manifests.values())

    def close(
        self,
        topics: Sequence[ImportedManifest],
        users: Sequence[ImportedManifest],
        *,
        creates_topics: bool,
    ) -> None:
        """Print how many objects were imported, and the next step."""
        adopting = sum(topic.adopts for topic in topics)
        # New topics have no id to adopt.
        effect = "" if creates_topics else f", {adopting} with the id of the topic to adopt"
        self.say(
            f"{count(len(topics), 'Topic')}{effect}"
            + (f"; {count(len(users), 'User')}" if users else "")
            + (f"; {self.troubles} not imported" if self.troubles else "")
        )
        if adopting < len(topics) and not creates_topics:
            self.say(
                "the others create new topics, or wait for adoption if their topics exist: see "
                "docs/how-to/migrate.md"
            )


def _strimzi_objects(
    run: _Run, paths: Sequence[str], only_cluster: str
) -> dict[str, list[Document]]:
    """Return the objects in ``paths`` to import by kind: KafkaTopic, KafkaUser, Kafka.

    Exits with an error if there is none, or if they are of several Strimzi clusters.
    """
    with fail_on(DocumentError):
        documents = read(paths)
    objects: dict[str, list[Document]] = {kind: [] for kind in _KINDS}
    # Strimzi's other kinds are reported, foreign ones are ignored.
    for document in documents:
        kind = next((kind for kind in _KINDS if strimzi.is_kind(document, kind)), None)
        if kind is not None:
            objects[kind].append(document)
        elif strimzi.is_strimzis(document):
            run.say(f"{document.source}: left out, see docs/how-to/migrate.md#equivalents")
    if not any(objects.values()):
        fail(
            f"there is no {', '.join(_KINDS[:-1])} or {_KINDS[-1]} in {', '.join(paths)} "
            f"({count(len(documents), 'object')})"
        )
    only = _chosen_cluster([*objects["KafkaTopic"], *objects["KafkaUser"]], only_cluster)
    for kind in ("KafkaTopic", "KafkaUser"):
        objects[kind] = [item for item in objects[kind] if strimzi.clusters([item]) == [only]]
    if only:
        objects["Kafka"] = [item for item in objects["Kafka"] if strimzi.object_name(item) == only]
    return objects


def _selected(run: _Run, topics: Sequence[Document], pattern: str) -> list[Document]:
    """Return the KafkaTopics whose topic name matches ``pattern``, without internal topics."""
    selected = []
    for document in topics:
        name = strimzi.topic_name(document)
        if not re.fullmatch(pattern or ".*", name):
            continue
        # Before the KafkaTopic is parsed: one that is skipped needs no valid spec.
        if is_internal(name):
            run.skip_internal(document.source, name)
        else:
            selected.append(document)
    return selected


def _listeners(run: _Run, documents: Sequence[Document]) -> str:
    """Return a comment with the values of the chart that have a Kafka object's listeners."""
    text = ""
    for document in documents:
        with run.of_source(document.source):
            values = equivalent_values(document)
            run.note(document.source, values.remarks)
            text += values_comment(values)
    return text


def _report_metadata(run: _Run, documents: Sequence[Document], metadata: MetadataRule) -> None:
    """Report labels and annotations that are not copied, once per key."""
    omitted = Counter(
        (key, str(document.body["kind"]))
        for document in documents
        for key in metadata.omitted(document)
    )
    for (key, kind), number in sorted(omitted.items()):
        run.say(
            f"{key} of {count(number, kind)} is not copied: the tool that set it could treat the "
            f"{kind.removeprefix('Kafka')} as its own object and delete it; copy a key with "
            "--keep-metadata KEY"
        )


def _of_strimzi(
    run: _Run, documents: Sequence[Document], defaults: Defaults, metadata: MetadataRule
) -> Iterator[ImportedTopic]:
    """Yield the KafkaTopics as topics to import; report those that cannot be imported."""
    for document in documents:
        with run.of_source(document.source):
            yield strimzi.imported_topic(document, defaults, metadata)


def _chosen_cluster(objects: Sequence[Document], only: str) -> str:
    """Return the Strimzi cluster to import, as a Tidemark Cluster corresponds to one cluster."""
    named = strimzi.clusters(objects)
    if only and objects and only not in named:
        fail(f"no object is of Strimzi cluster {only}; the files have {', '.join(named)}")
    if not only and len(named) > 1:
        names = ", ".join(name or "none (no label)" for name in named)
        fail(f"the objects are of several clusters, {names}: choose one with --strimzi-cluster")
    return only or next(iter(named), "")


def _check_pattern(topics: str) -> None:
    try:
        re.compile(topics)
    except re.error as error:
        fail(f"--topics {topics!r} is not a regular expression: {error}")


def _existing(
    run: _Run, bootstrap: str, client_config: Path | None, topics: str
) -> list[ExistingTopic]:
    """Return the topics of the Kafka cluster at ``bootstrap`` whose whole name matches ``topics``.

    Prints its progress. Exits with an error if the cluster cannot be read or no topic matches.
    """

    def tell(done: int, of: int) -> None:
        if of > kafka_topics.PAGE:
            run.say(f"{done:,} of {count(of, 'topic')} read")

    access = open_access(bootstrap, client_config)
    try:
        existing = kafka_topics.read(access, topics, tell)
    except KafkaError as error:
        fail(f"the cluster at {bootstrap} cannot be read: {error}")
    # An empty result is more likely a wrong address or pattern than an empty cluster.
    if not existing:
        fail(f"the cluster at {bootstrap} has no topic{f' matching {topics}' if topics else ''}")
    return existing


def _of_cluster(run: _Run, existing: Iterable[ExistingTopic], name: str) -> Iterator[ImportedTopic]:
    for topic in existing:
        if kafka_topics.is_own(topic.view):
            run.skip_internal(f"{name}, topic {topic.view.name}", topic.view.name)
            continue
        with run.of_source(f"topic {topic.view.name}"):
            yield kafka_topics.imported_topic(topic, name)


def _identified(
    run: _Run, topics: Iterable[ImportedTopic], existing: Iterable[ExistingTopic]
) -> Iterator[ImportedTopic]:
    known = {topic.view.name: topic for topic in existing}
    for topic in topics:
        with run.of_source(topic.source):
            yield kafka_topics.with_topic_id(topic, known)


def _write(path: Path | None, text: str) -> None:
    if path is None:
        print(text, end="")
        return
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}")


_WIDTH = 100


def as_yaml(manifests: Iterable[ImportedManifest]) -> str:
    """Return one document for each manifest, in their order."""
    return "".join(f"---\n{comment(manifest)}{body(manifest)}" for manifest in manifests)


def comment(manifest: ImportedManifest) -> str:
    """Return the comment with a manifest's source, remarks and commands.

    Commands are not wrapped, so that they can be copied.
    """
    text = _wrapped([f"From {manifest.source}.", *(f"- {item}" for item in manifest.remarks)])
    return text + "".join(f"#   {command}\n" for command in manifest.commands)


def values_comment(values: EquivalentValues) -> str:
    """Return values of the chart as a comment, since brokers are not created by this file."""
    text = _wrapped(
        [
            f"From {values.source}: values of the Helm chart for brokers with these listeners.",
            *(f"- {remark}" for remark in values.remarks),
        ]
    )
    body = yaml.safe_dump(values.values, sort_keys=False, width=_WIDTH)
    return text + "".join(f"#   {line}\n" for line in body.splitlines())


def _wrapped(lines: Iterable[str]) -> str:
    return "".join(
        f"# {part}\n"
        for line in lines
        for part in textwrap.wrap(
            line,
            _WIDTH,
            subsequent_indent="  " if line.startswith("-") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def body(manifest: ImportedManifest) -> str:
    """Return the manifest in its own key order, which is the conventional one."""
    return str(yaml.safe_dump(manifest.manifest, sort_keys=False, allow_unicode=True, width=_WIDTH))
