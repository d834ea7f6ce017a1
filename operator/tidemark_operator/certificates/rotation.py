"""How one authority follows another while everybody goes on talking: pure steps.

1. *steady*: one authority, all trust it, it has issued every leaf.
2. *announced*: the next one is made and trusted beside the present one, which still issues. It is
   waited for that every broker that is alive trusts both.
3. *issuing*: the next one issues; every leaf is made anew. It is waited for that every broker that
   is alive shows its new leaf; a broker that is down has it in its files when it comes back.
4. *steady* again: the former one is trusted no more.

At each moment everybody trusts whoever has issued what anybody may still show. A pause beside the
brokers' word leaves time to files that only arrive later, and to operators that do not lead.
"""

import datetime as dt
import enum
import secrets
from dataclasses import dataclass, replace

from tidemark_operator.certificates import authority
from tidemark_operator.certificates.authority import KeyPair

_SECRET_BYTES = 32


class Phase(enum.StrEnum):
    """As it is kept beside the keys."""

    STEADY = "Steady"
    ANNOUNCED = "Announced"
    ISSUING = "Issuing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorities:
    """``issuing`` signs leaves; ``other``: the certificate of the next or of the former authority,
    trusted beside it; ``next_key``: the next one's key, while it is announced. ``since``: when this
    phase began. ``renewal``: the last request of a user that was obeyed (any text).
    ``strangers``: by which brokers answer names that nobody has; it outlives all renewals, so that
    no answer changes with one."""

    cluster_id: str
    phase: Phase
    issuing: KeyPair
    other: bytes = b""
    next_key: bytes = b""
    since: dt.datetime
    renewal: str = ""
    strangers: bytes = b""

    @property
    def trusted(self) -> bytes:
        """All that is trusted, in PEM."""
        return self.issuing.certificate + self.other


def first(cluster_id: str, now: dt.datetime) -> Authorities:
    """Of a cluster that has none yet."""
    made = authority.make_authority(cluster_id, now)
    return Authorities(
        cluster_id=cluster_id,
        phase=Phase.STEADY,
        issuing=made,
        since=now,
        strangers=secrets.token_bytes(_SECRET_BYTES),
    )


def next_step(
    held: Authorities,
    now: dt.datetime,
    *,
    all_have_it: bool,
    pause: dt.timedelta,
    renewal: str = "",
) -> Authorities:
    """The same where nothing is due. ``all_have_it``: every broker that is alive uses what was last
    issued; ``renewal``: what a user asks for now, "" for nothing."""
    if held.phase is Phase.STEADY:
        is_asked = bool(renewal) and renewal != held.renewal
        if is_asked or authority.is_due(held.issuing, now):
            return _announce(held, now, renewal)
        return held
    if not all_have_it or now < held.since + pause:
        return held
    return _switch(held, now) if held.phase is Phase.ANNOUNCED else _settle(held, now)


def _announce(held: Authorities, now: dt.datetime, renewal: str) -> Authorities:
    following = authority.make_authority(held.cluster_id, now)
    return replace(
        held,
        phase=Phase.ANNOUNCED,
        other=following.certificate,
        next_key=following.key,
        since=now,
        renewal=renewal or held.renewal,
    )


def _switch(held: Authorities, now: dt.datetime) -> Authorities:
    return replace(
        held,
        phase=Phase.ISSUING,
        issuing=KeyPair(held.other, held.next_key),
        other=held.issuing.certificate,
        next_key=b"",
        since=now,
    )


def _settle(held: Authorities, now: dt.datetime) -> Authorities:
    return replace(held, phase=Phase.STEADY, other=b"", since=now)
