"""The table of disabling (KIP-950): each property in each state of a topic's tiering."""

import enum
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.tiering import NEVER_TIERED, STEPS, DisablePolicy, Tiering, TieringState

NONE, ENABLED = TieringState.NONE, TieringState.ENABLED
DISABLING, DISABLED = TieringState.DISABLING, TieringState.DISABLED
RETAIN, DELETE = DisablePolicy.RETAIN, DisablePolicy.DELETE

#: A topic that was enabled again remembers its last policy and acts on none.
COLUMNS = {
    "never": NEVER_TIERED,
    "on": Tiering(ENABLED, 0),
    "again": Tiering(ENABLED, 5, DELETE),
    "retaining": Tiering(DISABLING, 5, RETAIN),
    "retained": Tiering(DISABLED, 5, RETAIN),
    "deleting": Tiering(DISABLING, 5, DELETE),
    "deleted": Tiering(DISABLED, 5, DELETE),
}
#: ``_before`` is under a head claimed in the former epoch, ``_own`` under one of this epoch.
#: ``_full`` and ``_empty`` describe the tier, as far as it is visible.
TABLE = """
                          never  on      again   retaining  retained   deleting   deleted
 ever_tiered              no     yes     yes     yes        yes        yes        yes
 is_off                   yes    no      no      no         yes        no         yes
 is_disabling             no     no      no      yes        no         yes        no
 policy_applies             no     no      no      yes        yes        yes        yes
 in_force                 -      -       -       RETAIN     RETAIN     DELETE     DELETE
 copies                   no     yes     yes     no         no         no         no
 may_expire               no     yes     yes     yes        yes        no         no
 reads_tier               no     yes     yes     yes        yes        yes        no
 deletes                  no     no      no      no         no         yes        yes
 is_deleting              no     no      no      no         no         yes        no
 has_to_delete_before     no     no      no      no         no         yes        yes
 has_to_delete_own        no     no      no      no         no         no         no
 part_is_gone_before      no     no      no      no         no         no         no
 part_is_gone_own         no     no      no      no         no         yes        no
 first_live_epoch         0      0       0       0          0          5          5
 local_retention_full     WHOLE  COPIED  COPIED  SUSPENDED  SUSPENDED  SUSPENDED  WHOLE
 local_retention_empty    WHOLE  COPIED  COPIED  SUSPENDED  WHOLE      SUSPENDED  WHOLE
"""
QUESTIONS: dict[str, Callable[[Tiering], object]] = {
    "in_force": lambda tiering: tiering.in_force.policy,
    "has_to_delete_before": lambda tiering: tiering.needs_delete_commit(4),
    "has_to_delete_own": lambda tiering: tiering.needs_delete_commit(5),
    "part_is_gone_before": lambda tiering: tiering.has_deleted_remote_part(4),
    "part_is_gone_own": lambda tiering: tiering.has_deleted_remote_part(5),
    "local_retention_full": lambda tiering: tiering.local_retention(tier_is_empty=False),
    "local_retention_empty": lambda tiering: tiering.local_retention(tier_is_empty=True),
}
_HEADING, *_ROWS = (line.split() for line in TABLE.strip().splitlines())


def _in_words(answer: object) -> str:
    if isinstance(answer, bool):
        return "yes" if answer else "no"
    if isinstance(answer, enum.Enum):
        return answer.name
    return "-" if answer is None else str(answer)


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row[0])
def test_the_table_of_disabling(row: list[str]) -> None:
    name, *expected = row
    ask = QUESTIONS.get(name, lambda tiering: getattr(tiering, name))
    assert {column: _in_words(ask(COLUMNS[column])) for column in _HEADING} == dict(
        zip(_HEADING, expected, strict=True)
    )


def test_the_table_has_every_question() -> None:
    """A new property of the value needs a row."""
    properties = {name for name, member in vars(Tiering).items() if isinstance(member, property)}
    rows = {row[0] for row in _ROWS}
    assert properties - rows == {"disable_policy", "acknowledged"}


@pytest.mark.parametrize("state", TieringState)
def test_no_policy_is_retain(state: TieringState) -> None:
    unset, retain = Tiering(state, 1), Tiering(state, 1, RETAIN)
    assert unset.disable_policy is RETAIN
    for row in _ROWS:
        ask = QUESTIONS.get(row[0], lambda tiering, name=row[0]: getattr(tiering, name))
        assert ask(unset) == ask(retain)


# ---------------------------------------------------------------- transitions


@pytest.mark.parametrize(
    ("before", "enabled", "own", "default", "after"),
    [
        ("never", False, None, RETAIN, NEVER_TIERED),
        ("never", True, None, RETAIN, Tiering(ENABLED, 0)),
        ("on", True, DELETE, DELETE, Tiering(ENABLED, 0)),
        ("on", False, None, RETAIN, Tiering(DISABLING, 1, RETAIN)),
        ("on", False, None, DELETE, Tiering(DISABLING, 1, DELETE)),
        ("on", False, DELETE, RETAIN, Tiering(DISABLING, 1, DELETE)),
        ("again", False, RETAIN, DELETE, Tiering(DISABLING, 6, RETAIN)),
        ("retaining", True, None, DELETE, Tiering(DISABLING, 5, RETAIN)),
        ("retaining", False, DELETE, DELETE, Tiering(DISABLING, 5, RETAIN)),
        ("deleting", True, RETAIN, RETAIN, Tiering(DISABLING, 5, DELETE)),
        ("retained", True, None, RETAIN, Tiering(ENABLED, 5, RETAIN)),
        ("retained", False, None, DELETE, Tiering(DISABLED, 5, RETAIN)),
        ("retained", False, DELETE, RETAIN, Tiering(DISABLING, 6, DELETE)),
        ("deleted", True, RETAIN, RETAIN, Tiering(ENABLED, 5, DELETE)),
        ("deleted", False, RETAIN, RETAIN, Tiering(DISABLED, 5, DELETE)),
        ("deleted", False, DELETE, DELETE, Tiering(DISABLED, 5, DELETE)),
    ],
)
def test_successor_of_a_changed_spec(
    before: str,
    enabled: bool,
    own: DisablePolicy | None,
    default: DisablePolicy,
    after: Tiering,
) -> None:
    tiering = COLUMNS[before]
    new = tiering.successor(enabled=enabled, policy=own, default_policy=default)
    assert new == after
    # A spec that changes nothing returns the same object.
    assert (new is tiering) == (new == tiering)


def test_transitions_are_those_that_the_resource_admits() -> None:
    """The CRD's transition rule is made of ``STEPS``."""
    changes = [
        (before.state, before.successor(enabled=on, policy=own, default_policy=RETAIN).state)
        for before in COLUMNS.values()
        for on in (True, False)
        for own in (None, RETAIN, DELETE)
    ]
    moves = {(before, after) for before, after in changes if before is not after}
    moves |= {(t.state, t.acknowledged.state) for t in COLUMNS.values() if t.is_disabling}
    assert moves == {(NONE, ENABLED), *STEPS}


def test_only_acknowledgements_end_disabling() -> None:
    assert COLUMNS["retaining"].acknowledged == COLUMNS["retained"]
    assert COLUMNS["deleting"].acknowledged == COLUMNS["deleted"]


def test_within_an_epoch_the_order_is_disabling_disabled_enabled() -> None:
    order = [Tiering(state, 5) for state in (DISABLING, DISABLED, ENABLED)]
    # Going back in this order means that an older state arrives late.
    back = [(a.state, b.state) for a in order for b in order if b.is_regression_from(a)]
    assert back == [(DISABLED, DISABLING), (ENABLED, DISABLING), (ENABLED, DISABLED)]
    assert not Tiering(DISABLING, 6).is_regression_from(Tiering(ENABLED, 5))


def test_the_policy_is_frozen_with_the_epoch() -> None:
    assert COLUMNS["deleting"].changes_policy_of(COLUMNS["retaining"])
    assert COLUMNS["deleted"].changes_policy_of(COLUMNS["retaining"])
    assert not COLUMNS["retained"].changes_policy_of(COLUMNS["retaining"])
    assert not COLUMNS["again"].changes_policy_of(COLUMNS["retained"])
    assert not Tiering(DISABLING, 6, DELETE).changes_policy_of(COLUMNS["retained"])


@given(
    steps=st.lists(
        st.tuples(
            st.booleans(), st.sampled_from([None, RETAIN, DELETE]), st.sampled_from(DisablePolicy)
        )
    )
)
def test_no_change_of_the_spec_moves_tiering_back(
    steps: list[tuple[bool, DisablePolicy | None, DisablePolicy]],
) -> None:
    tiering = NEVER_TIERED
    for enabled, policy, default in steps:
        successor = tiering.successor(enabled=enabled, policy=policy, default_policy=default)
        for new in (successor, successor.acknowledged if successor.is_disabling else successor):
            assert new.epoch >= tiering.epoch
            assert (
                not new.ever_tiered
                or not tiering.ever_tiered
                or not new.is_regression_from(tiering)
            )
            assert not new.changes_policy_of(tiering)
            tiering = new
