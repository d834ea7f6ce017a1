"""Regular expressions in subscriptions: which must be resolved, and their records.

The coordinator resolves an expression for the whole group, among the topics that the requesting
member may describe (see
:meth:`~tidemark_broker.groups.group_coordinator.GroupCoordinator.consumer_heartbeat`). Each member
with the expression gets the recorded topics.
"""

from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from tidemark_broker.groups.core.consumer_checks import refused
from tidemark_broker.groups.core.consumer_effects import Entry, ResolvedRegex, regex_entry
from tidemark_broker.groups.core.consumer_group import ConsumerGroup, ConsumerMember
from tidemark_broker.groups.core.consumer_values import HeartbeatRequest
from tidemark_broker.groups.core.settings import Now

#: Limit of different expressions in one group. Each is matched against all topics.
REGEXES_MAX = 50
#: Minimum interval of resolving expressions again after a change of topics (Kafka's
#: REGEX_BATCH_REFRESH_MIN_INTERVAL_MS).
_PAUSE_MS = 10_000


def unresolved(
    group: ConsumerGroup | None,
    regex: str | None,
    topics_version: int,
    refresh_ms: int,
    now: Now,
) -> Sequence[str]:
    """Return the regular expressions to resolve before a heartbeat is handled.

    ``regex``: the heartbeat's own expression, None or "" for none. All expressions of the group are
    due if topics may have changed, or after ``refresh_ms``. Otherwise only those are due that were
    never resolved. ``group`` None: it does not exist yet.
    """
    if group is None:
        return [regex] if regex else []
    in_use = dict.fromkeys(group.regexes_in_use)
    if regex:
        in_use[regex] = None
    if not in_use:
        return []
    # A short pause after each resolution limits the work while many topics are created.
    changed = group.regexes_version != topics_version
    pause_ms = _PAUSE_MS if changed else refresh_ms
    if now.ms - group.regexes_checked_ms >= pause_ms:
        group.regexes_checked_ms = now.ms  # so that concurrent heartbeats do not resolve them too
        return list(in_use)
    return [expression for expression in in_use if expression not in group.regexes]


def check_limit(group: ConsumerGroup, regex: str | None) -> None:
    """Check the limit of expressions."""
    if regex and not group.uses_regex(regex) and len(group.regexes_in_use) >= REGEXES_MAX:
        wrong = f"The group already has {REGEXES_MAX} different expressions, which is the limit."
        raise refused(ErrorCode.invalid_regular_expression, wrong)


def resolved(group: ConsumerGroup, request: HeartbeatRequest, now: Now) -> list[Entry]:
    """Return record entries for expressions whose matching topics differ from the record.

    ``request.resolved``: matching topics by expression, as resolved before the heartbeat.
    """
    found = request.resolved or {}
    if not found:
        return []
    # Only a complete set marks the version as checked, else the others would never be refreshed.
    if all(expression in found for expression in group.regexes_in_use):
        group.regexes_version = request.topics_version
        group.regexes_checked_ms = now.ms
    return [
        regex_entry(group.group_id, regex, ResolvedRegex(topics, request.topics_version, now.ms))
        for regex, topics in found.items()
        # Members may have dropped an expression while it was being resolved.
        if (regex == request.regex or group.uses_regex(regex))
        and (regex not in group.regexes or group.regexes[regex].topics != topics)
    ]


def no_longer_used(
    group: ConsumerGroup, member: ConsumerMember | None, regex: str | None
) -> list[Entry]:
    """Return the tombstone of the member's previous expression, if no other member uses it."""
    former = None if member is None else member.subscription.regex
    if former is None or former == regex or group.users_of(former) > 1:
        return []
    return [regex_entry(group.group_id, former, None)] if former in group.regexes else []
