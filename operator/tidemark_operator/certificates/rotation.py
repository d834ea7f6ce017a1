"""Rotation of an authority without an interruption: pure steps.

1. *steady*: one authority; all trust it, and it has issued every leaf.
2. *announced*: the next one exists and is trusted beside the present one, which still issues. The
   step ends when every live broker trusts both.
3. *issuing*: the next one issues, and every leaf is replaced. The step ends when every live broker
   shows its new leaf; a broker that is down finds it in its files when it starts.
4. *steady* again: the former one is no longer trusted.

At each moment, every process trusts the issuer of every leaf that may still be shown. A pause in
addition to the brokers' reports leaves time for files that arrive later, and for operators on
standby.
"""

import datetime as dt
import enum
import secrets
from dataclasses import dataclass, replace

from tidemark_operator.certificates import authority
from tidemark_operator.certificates.authority import KeyPair

_SECRET_BYTES = 32


class RotationPhase(enum.StrEnum):
    """Phase as it is stored beside the keys."""

    STEADY = "Steady"
    ANNOUNCED = "Announced"
    ISSUING = "Issuing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorities:
    """Present authority and its rotation.

    ``issuing`` signs leaves. ``other``: certificate of the next or the former authority, trusted as
    well. ``next_key``: the next one's key, while it is announced. ``since``: start of this phase.
    ``renewal``: the last request of a user that was fulfilled (any text). ``strangers``: key from
    which brokers derive answers for unknown names; it outlives all rotations, so that no answer
    changes with one.
    """

    cluster_id: str
    phase: RotationPhase
    issuing: KeyPair
    other: bytes = b""
    next_key: bytes = b""
    since: dt.datetime
    renewal: str = ""
    strangers: bytes = b""

    @property
    def trusted(self) -> bytes:
        """All trusted certificates in PEM."""
        return self.issuing.certificate + self.other


def first(cluster_id: str, now: dt.datetime) -> Authorities:
    """Return the authority of a cluster that has none yet."""
    made = authority.make_authority(cluster_id, now)
    return Authorities(
        cluster_id=cluster_id,
        phase=RotationPhase.STEADY,
        issuing=made,
        since=now,
        strangers=secrets.token_bytes(_SECRET_BYTES),
    )


def next_step(
    authorities: Authorities,
    now: dt.datetime,
    *,
    all_up_to_date: bool,
    pause: dt.timedelta,
    renewal: str = "",
) -> Authorities:
    """Return the authorities after the next step of a rotation, the same object if none is due.

    Steady -> Announced -> Issuing -> Steady; see the module's documentation. ``all_up_to_date``:
    every live broker uses the certificates that were issued last. ``pause``: least duration of each
    phase. ``renewal``: the user's present request for a rotation, "" for none.
    """
    # A rotation starts on request, or when the authority is close to its expiry.
    if authorities.phase is RotationPhase.STEADY:
        is_requested = bool(renewal) and renewal != authorities.renewal
        if is_requested or authority.is_due(authorities.issuing, now):
            return _announce(authorities, now, renewal)
        return authorities
    # Both conditions protect processes that do not trust the new authority yet, or still use a
    # certificate of the former one.
    if not all_up_to_date or now < authorities.since + pause:
        return authorities
    return (
        _switch(authorities, now)
        if authorities.phase is RotationPhase.ANNOUNCED
        else _settle(authorities, now)
    )


def _announce(authorities: Authorities, now: dt.datetime, renewal: str) -> Authorities:
    """Start a rotation: create the next authority, which is trusted but does not issue yet."""
    following = authority.make_authority(authorities.cluster_id, now)
    return replace(
        authorities,
        phase=RotationPhase.ANNOUNCED,
        other=following.certificate,
        next_key=following.key,
        since=now,
        renewal=renewal or authorities.renewal,
    )


def _switch(authorities: Authorities, now: dt.datetime) -> Authorities:
    """Let the announced authority issue; the former one stays trusted."""
    return replace(
        authorities,
        phase=RotationPhase.ISSUING,
        issuing=KeyPair(authorities.other, authorities.next_key),
        other=authorities.issuing.certificate,
        next_key=b"",
        since=now,
    )


def _settle(authorities: Authorities, now: dt.datetime) -> Authorities:
    return replace(authorities, phase=RotationPhase.STEADY, other=b"", since=now)
