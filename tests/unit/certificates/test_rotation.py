"""Rotation of an authority: at every moment all brokers trust every leaf that is in use."""

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.tls.identity import TlsIdentity
from tidemark_operator.certificates import authority, rotation
from tidemark_operator.certificates.authority import BadCertificate, KeyPair, split
from tidemark_operator.certificates.rotation import Authorities, RotationPhase
from tidemark_operator.certificates.stored_authority import authority_data, read_authority

PAUSE = dt.timedelta(minutes=5)
NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
BROKER = TlsIdentity("c1", 1)
FIRST = rotation.first("c1", NOW)


def trusts(current: Authorities, leaf: KeyPair) -> bool:
    anchors = [KeyPair(part, b"") for part in split(current.trusted)]
    return any(authority.is_issued_by(leaf, anchor) for anchor in anchors)


def test_a_leaf_is_for_one_broker_and_of_one_authority() -> None:
    leaf = authority.issue(FIRST.issuing, BROKER, NOW)
    assert authority.is_for(leaf, BROKER)
    assert not authority.is_for(leaf, TlsIdentity("c1", 2))
    assert not authority.is_for(KeyPair(leaf.certificate, FIRST.issuing.key), BROKER)
    assert authority.is_issued_by(leaf, FIRST.issuing)
    assert not authority.is_issued_by(leaf, rotation.first("c1", NOW).issuing)


@pytest.mark.parametrize(("days", "due"), [(0, False), (59, False), (60, True), (91, True)])
def test_a_leaf_is_renewed_after_two_thirds_of_its_life(days: int, due: bool) -> None:
    leaf = authority.issue(FIRST.issuing, BROKER, NOW)
    assert authority.is_due(leaf, NOW + dt.timedelta(days=days)) is due


def test_no_leaf_outlives_its_authority() -> None:
    late = NOW + authority.AUTHORITY_LIFE - dt.timedelta(days=1)
    leaf = authority.issue(FIRST.issuing, BROKER, late)
    assert leaf.parsed.not_valid_after_utc <= FIRST.issuing.parsed.not_valid_after_utc


def test_rotation_has_three_steps() -> None:
    # Announced: trusted by all, but not issuing yet.
    announced = rotation.next_step(FIRST, NOW, all_up_to_date=True, renewal="1", pause=PAUSE)
    assert announced.phase is RotationPhase.ANNOUNCED
    assert announced.issuing == FIRST.issuing
    later = NOW + PAUSE
    assert rotation.next_step(announced, NOW, all_up_to_date=True, pause=PAUSE) is announced, (
        "files take time"
    )
    assert rotation.next_step(announced, later, all_up_to_date=False, pause=PAUSE) is announced
    # Issuing: new leaves, while the former authority stays trusted.
    issuing = rotation.next_step(announced, later, all_up_to_date=True, pause=PAUSE)
    assert issuing.phase is RotationPhase.ISSUING
    assert issuing.issuing.certificate == announced.other
    # Steady: the former authority is dropped.
    steady = rotation.next_step(issuing, later + PAUSE, all_up_to_date=True, pause=PAUSE)
    assert steady.phase is RotationPhase.STEADY
    assert steady.trusted == issuing.issuing.certificate
    again = rotation.next_step(steady, later + PAUSE, all_up_to_date=True, renewal="1", pause=PAUSE)
    assert again is steady, "the same request is not obeyed twice"


def test_rotation_starts_before_the_authority_expires() -> None:
    early = NOW + authority.AUTHORITY_LIFE / 2
    assert rotation.next_step(FIRST, early, all_up_to_date=True, pause=PAUSE) is FIRST
    late = NOW + authority.AUTHORITY_LIFE * 3 / 4
    assert (
        rotation.next_step(FIRST, late, all_up_to_date=True, pause=PAUSE).phase
        is RotationPhase.ANNOUNCED
    )


@given(
    steps=st.lists(st.tuples(st.booleans(), st.sampled_from(["", "a", "b"])), max_size=12),
)
def test_a_broker_one_step_behind_still_trusts_every_leaf(
    steps: list[tuple[bool, str]],
) -> None:
    """One broker uses the leaf of the previous step, and another one that of this step."""
    now, current = NOW, FIRST
    leaf = authority.issue(current.issuing, BROKER, now)
    for all_have_it, renewal in steps:
        # Random steps, in which brokers follow or do not.
        now += PAUSE
        following = rotation.next_step(
            current, now, all_up_to_date=all_have_it, renewal=renewal, pause=PAUSE
        )
        renewed = authority.issue(following.issuing, BROKER, now)
        assert trusts(following, leaf)
        assert trusts(current, renewed)
        assert read_authority(authority_data(following)) == following
        current, leaf = following, renewed


@pytest.mark.parametrize("missing", ["state", "tls.crt", "tls.key"])
def test_incomplete_authority_is_refused(missing: str) -> None:
    data = authority_data(FIRST)
    del data[missing]
    with pytest.raises(BadCertificate):
        read_authority(data)


def test_later_format_is_refused() -> None:
    data = authority_data(FIRST) | {"state": b"2\nc1\nSteady\n2030-01-01T00:00:00+00:00\n"}
    with pytest.raises(BadCertificate, match="Upgrade the operator"):
        read_authority(data)
