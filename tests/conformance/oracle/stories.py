"""Requests that depend on the answers before them: the life of a group's member, of a producer, of
a transaction, of a fetch session, of a topic.

Each story runs in several rounds, the first in the newest versions of all its Apis, each later
round in versions one older, as far as they exist.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tests.conformance.oracle.case import READ, OracleCase
from tests.conformance.oracle.entities import id_of, in_partition, node, numbered
from tests.conformance.oracle.group_stories import group_story, new_group_story, static_story
from tests.conformance.oracle.producer_stories import (
    idempotent_story,
    late_transaction_story,
    transaction_story,
)
from tests.conformance.oracle.steps import PATIENCE, StoryStep, heard, step


def _session(_: str) -> Iterator[StoryStep]:
    def fetches(what: str, epoch: int, *topics: Mapping[str, object], gone: Any = ()) -> StoryStep:
        return step("Fetch", 1, what, hears="session_id" if not epoch else "", replica_id=-1,
                     max_wait=0, min_bytes=0, max_bytes=1 << 26,
                     session_id=heard("session_id", 0) if epoch else 0, session_epoch=epoch,
                     topics=topics, forgotten_topics_data=gone)  # fmt: skip

    def at(offset: int) -> Mapping[str, object]:
        asked = {"fetch_offset": offset, "current_leader_epoch": -1, "last_fetched_epoch": -1}
        return in_partition(READ, **asked, log_start_offset=-1, partition_max_bytes=1 << 20)

    # Epoch 0 opens a session, whose id the later steps use (KIP-227).
    yield fetches("a session", 0, at(0))
    yield fetches("in a session", 1)
    yield fetches("from elsewhere in a session", 2, at(3))
    yield fetches("nothing new in a session", 3)
    yield fetches("an unknown topic in a session", 4, {**at(0), "topic": "nope",
                                                       "topic_id": id_of("nope")})  # fmt: skip
    yield fetches("of a wrong epoch", 9)
    # The epoch 9 was refused and does not count, so the session continues with 5.
    yield fetches("forgets in a session", 5, gone=(numbered(READ, 0),))
    yield fetches("nothing any more", 6)
    yield fetches("ends a session", -1, at(0))
    # The session was ended, so its id is unknown.
    yield fetches("after its end", 7)


def _topic(name: str) -> Iterator[StoryStep]:
    config = {"name": "retention.ms", "value": "1000", "config_operation": 0}
    made = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (),
            "configs": (config,)}  # fmt: skip
    # A name twice in one request is invalid and creates nothing.
    yield step("CreateTopics", 19, "twice in one", topics=(made, made), **PATIENCE)
    yield step("CreateTopics", 19, "of a new one", topics=(made,), **PATIENCE)
    yield step("CreateTopics", 19, "again", topics=(made,), **PATIENCE)
    yield step("CreatePartitions", 37, "of a new one", **PATIENCE,
                topics=({"name": name, "count": 2, "assignments": ({"broker_ids": (node,)},)},),
                )  # fmt: skip

    # Operations: 0 set, 1 delete, 2 append, 3 subtract.
    def alters(what: str, **changed: object) -> StoryStep:
        resource = {"resource_type": 2, "resource_name": name, "configs": ({**config, **changed},)}
        return step("IncrementalAlterConfigs", 44, what, resources=(resource,))

    yield alters("sets", value="2000")
    yield alters("appends to a number", value="2000", config_operation=2)
    yield alters("by an unknown operation", config_operation=9)
    yield alters("to nothing", value=None)
    yield alters("deletes", value=None, config_operation=1)
    # KIP-950's key, which Apache Kafka does not have.
    policy = {"name": "remote.log.disable.policy", "value": "keep"}
    yield alters("to an unsupported disable policy", **policy)
    yield step("AlterConfigs", 33, "to an unsupported disable policy", resources=(
                {"resource_type": 2, "resource_name": name, "configs": (policy,)},))  # fmt: skip
    # Deletion of an existing and of an unknown topic in one request, then of one that was just
    # deleted.
    yield step("DeleteTopics", 20, "of a new one", topic_names=(name, "nope"),
                topics=({"name": name}, {"name": "nope"}), **PATIENCE)  # fmt: skip
    yield step("DeleteTopics", 20, "again", topic_names=(name,), topics=({"name": name},),
                **PATIENCE)  # fmt: skip


Story = Callable[[str], Iterator[StoryStep]]
#: Name -> the story, and in how many rounds at most.
STORIES: Mapping[str, tuple[Story, int]] = {
    "session": (_session, 99),
    "idempotent": (idempotent_story, 99),
    "transaction": (transaction_story, 99),
    "late transaction": (late_transaction_story, 99),
    "group": (group_story, 99),
    "static": (static_story, 99),
    "new group": (new_group_story, 99),
    "topic": (_topic, 2),
}


def story_cases(served: Mapping[int, range]) -> Iterator[OracleCase]:
    """All of them, of the Apis that both sides serve."""
    for name, (story, most) in STORIES.items():
        # A round uses the newest version minus its number, so there are as many rounds as the API
        # with the most versions has.
        keys = {item.api_key for item in story("") if served.get(item.api_key)}
        rounds = min(most, max((len(served[key]) for key in keys), default=0))
        for number in range(rounds):
            for item in story(f"oracle-{name.replace(' ', '-')}-{number}"):
                if item.api_key in keys:
                    versions = served[item.api_key]
                    version = max(versions[-1] - number, versions[0])
                    title = f"{item.api} v{version} {name} {number}: {item.what}"
                    yield replace(item.case(title, version), round=number)
