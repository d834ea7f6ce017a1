"""Expressions of a consumer group's members: which are to be looked up, and what is on record of
them.

The coordinator looks them up, in what one member may describe for all (see
:meth:`~tidemark_broker.groups.group_coordinator.GroupCoordinator.consumer_heartbeat`); whoever has
an expression gets the topics that stand on record for it.
"""

from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from tidemark_broker.groups.core.consumer_checks import refused
from tidemark_broker.groups.core.consumer_effects import Entry, ResolvedRegex, regex_entry
from tidemark_broker.groups.core.consumer_group import ConsumerGroup, ConsumerMember
from tidemark_broker.groups.core.consumer_values import HeartbeatRequest
from tidemark_broker.groups.core.settings import Now

#: Different expressions in one group: each is looked up in all topics.
REGEXES_MAX = 50
#: Expressions are looked up again this long after the last time where topics have changed (Kafka's
#: REGEX_BATCH_REFRESH_MIN_INTERVAL_MS).
_PAUSE_MS = 10_000


def unresolved(
    group: ConsumerGroup | None,
    regex: str | None,
    topics_version: int,
    refresh_ms: int,
    now: Now,
) -> Sequence[str]:
    """Expressions whose topics are to be looked up before the heartbeat that brings ``regex``:
    those that nobody has looked up, and all of the group's where topics may have changed, or after
    ``refresh_ms``."""
    if group is None:
        return [regex] if regex else []
    wanted = dict.fromkeys(group.wanted_regexes)
    if regex:
        wanted[regex] = None
    if not wanted:
        return []
    changed = group.regexes_version != topics_version
    pause_ms = _PAUSE_MS if changed else refresh_ms
    if now.ms - group.regexes_checked_ms >= pause_ms:
        group.regexes_checked_ms = now.ms  # by this member, not by all that are heard of now
        return list(wanted)
    return [each for each in wanted if each not in group.regexes]


def check_limit(group: ConsumerGroup, regex: str | None) -> None:
    """May there be one more?"""
    if regex and not group.wants_regex(regex) and len(group.wanted_regexes) >= REGEXES_MAX:
        wrong = f"The group has {REGEXES_MAX} different expressions already."
        raise refused(ErrorCode.invalid_regular_expression, wrong)


def resolved(group: ConsumerGroup, request: HeartbeatRequest, now: Now) -> list[Entry]:
    """Those of the group whose topics are others than on record."""
    found = request.resolved or {}
    if not found:
        return []
    if all(each in found for each in group.wanted_regexes):
        group.regexes_version = request.topics_version
        group.regexes_checked_ms = now.ms
    return [
        regex_entry(group.group_id, regex, ResolvedRegex(topics, request.topics_version, now.ms))
        for regex, topics in found.items()
        if (regex == request.regex or group.wants_regex(regex))
        and (regex not in group.regexes or group.regexes[regex].topics != topics)
    ]


def no_longer_used(
    group: ConsumerGroup, member: ConsumerMember | None, regex: str | None
) -> list[Entry]:
    """The expression that the member had until now, where it was the only one and is to have
    ``regex``."""
    former = None if member is None else member.subscription.regex
    if former is None or former == regex or group.users_of(former) > 1:
        return []
    return [regex_entry(group.group_id, former, None)] if former in group.regexes else []
