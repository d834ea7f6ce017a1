"""All that is sent to both: rows that were thought of, of every Api and version that both serve the
good request with one field after another made something else, requests with nothing in them, what
is no good frame, and the stories.

What the table changes: records and offsets of its own topics, groups and producers of its own. What
tells of all groups or topics stands before what makes more of them.
"""

from collections.abc import Iterator, Mapping, Sequence

from kio.index import load_request_schema

from tests.conformance.oracle import intended_differences
from tests.conformance.oracle.case import OracleCase, frame_of, sized
from tests.conformance.oracle.compound_requests import admin_rows, group_rows
from tests.conformance.oracle.entities import blank
from tests.conformance.oracle.fetch_cases import fetch_rows, offset_rows
from tests.conformance.oracle.frames import frame_cases
from tests.conformance.oracle.produce_cases import produce_rows
from tests.conformance.oracle.stories import story_cases
from tests.conformance.oracle.valid_requests import good_cases


def cases(served: Mapping[int, range]) -> list[OracleCase]:
    """All of them; ``served``: the versions of each Api that both sides serve."""
    made: list[OracleCase] = list(frame_cases(served))
    for api_key, versions in sorted(served.items()):
        made += _blanks(api_key, versions)
    for row in (*produce_rows(), *fetch_rows(), *offset_rows(), *group_rows(), *admin_rows()):
        made += row.cases(served.get(row.api_key, range(0)))
    made += good_cases(served)
    made += story_cases(served)
    return made


def some(table: Sequence[OracleCase], *, rounds: int) -> list[OracleCase]:
    """Each kind of request in its newest version and in one that is older, a different one for each
    kind, of those that one field makes in one of the two; of the stories the first ``rounds``. In
    the table's order, without those that would be waited for."""
    kinds: dict[str, list[int]] = {}
    for number, item in enumerate(table):
        if not intended_differences.is_silent(item.name):
            kinds.setdefault(item.kind, []).append(number)
    kept = set()
    # The turn moves the older version on, so that all versions are tested over the whole table.
    for turn, (kind, found) in enumerate(kinds.items()):
        older = found[turn // 2 % max(len(found) - 1, 1)]
        is_varied = ": " in kind
        kept |= {found[-1], older} if not is_varied else {older if turn % 2 else found[-1]}
    return [
        item
        for number, item in enumerate(table)
        if (number in kept if item.round is None else item.round < rounds)
    ]


def _blanks(api_key: int, versions: range) -> Iterator[OracleCase]:
    """Arrays are empty, and fields as Kafka's generated classes begin."""
    for version in versions:
        kind = load_request_schema(api_key, version)
        name = f"{kind.__name__.removesuffix('Request')} v{version} blank"
        frame = frame_of(blank(kind))
        # Three variants: complete, one byte too short, and one byte too long.
        made = {"": frame, ", cut": sized(frame[:-1]), " and a byte": sized(frame + b"x")}
        for what, whole in made.items():
            yield OracleCase(name + what, api_key, version, lambda _, f=whole: f)
