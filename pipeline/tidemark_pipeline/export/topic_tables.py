"""Tables of the topics of one export, and the order in which their topics are exported.

The name of each table comes from a template such as ``db.{topic}``. Names of topics may have dots
and dashes, which names of tables do not allow, so two topics can have the same table. Neither is
exported then, because the offsets in a table's commits are those of one topic.

Pure. :mod:`tidemark_pipeline.jobs.export_topics` runs the exports.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidemark.backoff import Backoff
from tidemark.export_job import TOPICS_NAMED_MAX, TopicReport, TopicsReport

PLACEHOLDER = "{topic}"
#: Most topics of one export: each has an open table and its own state in the driver.
TOPICS_MAX = 2000
_NAME_CHARS_MAX = 255
_RETRY = Backoff(first_s=10.0, most_s=600.0)


def table_name(template: str, topic: str) -> str:
    """Return the name of a topic's table: other characters become underscores."""
    return template.replace(PLACEHOLDER, re.sub(r"[^A-Za-z0-9_]", "_", topic))


@dataclass(frozen=True, slots=True)
class TopicTable:
    """Tables of one topic. ``letters``: "" without dead letters.

    ``problem``: why the topic cannot be exported, "" if it can.
    """

    topic: str
    table: str
    letters: str = ""
    problem: str = ""


def topic_tables(
    topics: Collection[str], template: str, letters_template: str = ""
) -> dict[str, TopicTable]:
    """Return the tables of each topic by its templates.

    ``letters_template``: "" without dead letters. Catalogs may ignore the case of names, so names
    that differ only in case are the same table.
    """
    tables = [
        TopicTable(
            topic,
            table_name(template, topic),
            table_name(letters_template, topic) if letters_template else "",
        )
        for topic in sorted(topics)
    ]
    # Each table with the topics that would write it, as rows or as dead letters.
    writers: dict[str, list[str]] = {}
    for table in tables:
        for name in filter(None, (table.table, table.letters)):
            writers.setdefault(name.lower(), []).append(table.topic)
    return {
        table.topic: replace(table, problem=_problem(number, table, writers))
        for number, table in enumerate(tables)
    }


def _problem(number: int, table: TopicTable, writers: Mapping[str, Sequence[str]]) -> str:
    """Return why a topic cannot be exported, "" if it can. ``number``: its place among all topics.

    ``writers``: the topics that would write each table, by its name in lower case.
    """
    if number >= TOPICS_MAX:
        return f"an Export has at most {TOPICS_MAX} topics. Divide them among several Exports"
    # Both tables need a name that a catalog accepts, and that no other topic has.
    for name in filter(None, (table.table, table.letters)):
        if len(name) > _NAME_CHARS_MAX:
            return (
                f"the name of table {name[:40]}... has {len(name)} characters, {_NAME_CHARS_MAX} "
                "are allowed. Export the topic by another Export, to a table with a shorter name"
            )
        others = [topic for topic in writers[name.lower()] if topic != table.topic]
        if others:
            return (
                f"topics {table.topic} and {others[0]} have the same table {name}, so neither is "
                "exported. Export one of them by another Export, with another table"
            )
    return ""


# ------------------------------------------------------------ Order of exports


@dataclass(frozen=True, slots=True)
class TopicExportState:
    """State of one topic's export. Times are monotonic, in seconds.

    ``lag``: offsets that the table lacks, None while unknown. ``waits_since_s``: since when the
    topic waits for a turn, None if it has nothing to do. ``failure``: of the last turn. A failed
    topic gets no turn before ``retry``; ``is_final``: not before the job restarts.
    """

    table: TopicTable
    lag: int | None = None
    waits_since_s: float | None = None
    failure: str = ""
    is_final: bool = False
    retry: Backoff = field(default=_RETRY)

    @property
    def reported_failure(self) -> str:
        """Return why the topic is not exported, "" if it is."""
        return self.table.problem or self.failure

    def is_due(self, now_s: float) -> bool:
        """Return whether the topic may have a turn."""
        return (
            self.waits_since_s is not None
            and not self.table.problem
            and not self.is_final
            and self.retry.ready(now_s)
        )

    def waiting(self, now_s: float) -> "TopicExportState":
        """Return the state in which the topic waits for a turn, since now or since earlier."""
        return self if self.waits_since_s is not None else replace(self, waits_since_s=now_s)

    def missing(self) -> "TopicExportState":
        """Return the state of a topic that is named and does not exist."""
        text = f"topic {self.table.topic} does not exist. Create it, or remove it from the Export"
        return replace(self, waits_since_s=None, failure=text)

    def committed(self, now_s: float, lag: int, *, is_behind: bool) -> "TopicExportState":
        """Return the state after a turn. A topic that is still behind waits behind all others."""
        return replace(
            self,
            lag=lag,
            waits_since_s=now_s if is_behind else None,
            failure="",
            retry=self.retry.succeeded(),
        )

    def failed(self, now_s: float, failure: str, *, is_final: bool = False) -> "TopicExportState":
        """Return the state after a failed turn."""
        return replace(
            self,
            waits_since_s=now_s,
            failure=failure or "it reported no error",
            is_final=is_final,
            retry=self.retry.failed(now_s),
        )


def next_topic(states: Iterable[TopicExportState], now_s: float) -> TopicExportState | None:
    """Return the topic whose turn it is: the one that has waited longest."""
    due = [state for state in states if state.is_due(now_s)]
    return min(due, key=lambda s: (s.waits_since_s or 0.0, s.table.topic), default=None)


def report_of(states: Sequence[TopicExportState]) -> TopicsReport:
    """Return the counts of all topics, and the worst ones by name."""
    failing = [state for state in states if state.reported_failure]
    # A topic that had no turn yet may have any number of records.
    behind = [state for state in states if not state.reported_failure and state.lag != 0]
    # Failing topics first, then the largest lag.
    failing.sort(key=lambda state: state.table.topic)
    behind.sort(key=lambda state: (-(state.lag or 0), state.table.topic))
    return TopicsReport(
        total=len(states),
        failing=len(failing),
        behind=len(behind),
        worst=tuple(
            TopicReport(
                topic=state.table.topic,
                table=state.table.table,
                lag=state.lag,
                failure=state.reported_failure,
            )
            for state in (failing + behind)[:TOPICS_NAMED_MAX]
        ),
    )
