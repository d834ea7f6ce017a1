"""Stored certificate authority: created once, rotated step by step, never replaced.

A cluster has two independent ones: that of its brokers and controllers, and that of its clients. So
a trusted client is never trusted as a broker.

The stored form is the data of a Secret, or the files of a folder. The names are those of
``kubernetes.io/tls``. Unreadable data is never replaced: a new authority would lock out all
brokers.
"""

import datetime as dt
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping

from tidemark.tls.files import CERTIFICATE, KEY, TRUSTED
from tidemark_operator.certificates import rotation
from tidemark_operator.certificates.authority import BadCertificate, KeyPair, keys_match, split
from tidemark_operator.certificates.certificate_stores import BundleStore, StoredBundle
from tidemark_operator.certificates.rotation import Authorities, RotationPhase

# ------------------------------------------------------------ stored form


NEXT_KEY, OTHER, STATE, STRANGERS = "next.key", "other.crt", "state", "strangers.key"
_FORMAT = "1"


def authority_data(authorities: Authorities) -> dict[str, bytes]:
    """Return the authorities as data of the Secret that only the operator reads."""
    # One field per line; the user's text is last, because it may contain line ends.
    state = "\n".join(
        (
            _FORMAT,
            authorities.cluster_id,
            authorities.phase.value,
            authorities.since.isoformat(),
            authorities.renewal,
        )
    )
    # A rotation's state and its keys are in one Secret, so they are always written together.
    return {
        CERTIFICATE: authorities.issuing.certificate,
        KEY: authorities.issuing.key,
        OTHER: authorities.other,
        NEXT_KEY: authorities.next_key,
        TRUSTED: authorities.trusted,
        STATE: state.encode(),
        STRANGERS: authorities.strangers,
    }


def read_authority(data: Mapping[str, bytes]) -> Authorities:
    """Return the authorities from the data of their Secret. Raises :class:`BadCertificate`."""
    try:
        # The last field is a user's text, which may contain line ends.
        format_, cluster_id, phase, since, renewal = data[STATE].decode().split("\n", 4)
        if format_ != _FORMAT:
            raise BadCertificate(
                f"unknown format {format_!r} of the certificate authority. Upgrade the operator"
            )
        authorities = Authorities(
            cluster_id=cluster_id,
            phase=RotationPhase(phase),
            issuing=KeyPair(data[CERTIFICATE], data[KEY]),
            other=data.get(OTHER, b""),
            next_key=data.get(NEXT_KEY, b""),
            since=dt.datetime.fromisoformat(since),
            renewal=renewal,
            # Older data has no such key: the derived one is the same in every process.
            strangers=data.get(STRANGERS) or hashlib.sha256(b"strangers" + data[KEY]).digest(),
        )
    except (KeyError, ValueError) as error:
        raise BadCertificate(f"invalid certificate authority: {error!r}") from error
    _check(authorities)
    return authorities


def _check(authorities: Authorities) -> None:
    """Check everything that a later step or leaf needs: a step could lose a bad key for good."""
    if not keys_match(authorities.issuing):
        raise BadCertificate("the CA's private key does not match its certificate")
    if authorities.phase is RotationPhase.ANNOUNCED and not keys_match(
        KeyPair(authorities.other, authorities.next_key)
    ):
        raise BadCertificate("the next CA's private key does not match its certificate")
    if authorities.phase is not RotationPhase.STEADY:
        split(authorities.other)
    split(authorities.trusted)


def leaf_data(
    leaf: KeyPair, trusted: bytes, certificate: str = CERTIFICATE, key: str = KEY
) -> dict[str, bytes]:
    """Return the data of a broker's Secret or folder."""
    return {certificate: leaf.certificate, key: leaf.key, TRUSTED: trusted}


def read_leaf(
    data: Mapping[str, bytes], certificate: str = CERTIFICATE, key: str = KEY
) -> KeyPair | None:
    """Return the leaf; None if it is missing or incomplete."""
    if not data.get(certificate) or not data.get(key):
        return None
    return KeyPair(data[certificate], data[key])


def digest(data: Mapping[str, bytes]) -> str:
    """Return the digest by which a broker reports its bundle
    (:class:`tidemark.tls.files.Contexts`).
    """
    return hashlib.sha256(data[CERTIFICATE] + data[TRUSTED]).hexdigest()


logger = logging.getLogger(__name__)


class StoredAuthority:
    """One authority of one cluster, under ``name`` in a keeper. ``now`` returns aware UTC times."""

    def __init__(
        self, keeper: BundleStore, name: str, cluster_id: str, now: Callable[[], dt.datetime]
    ) -> None:
        self._keeper = keeper
        self._name = name
        self._cluster_id = cluster_id
        self._now = now
        self._existed = False

    async def get(self, has_issued: Callable[[], Awaitable[str]]) -> Authorities:
        """Return the stored authority; create it if the cluster never had one.

        ``has_issued`` returns where a certificate of a lost authority was found, "" for none. If
        the stored authority is unreadable, of another cluster or lost, it is never replaced: all
        brokers would reject each other. Raises :class:`BadCertificate`.
        """
        kept = await self._keeper.read(self._name)
        if kept is not None:
            return self._verify(kept)
        # This process has seen the authority before, so it was deleted.
        self._refuse_if_lost()
        # A leaf proves that there was an authority, even to a new process.
        if issued := await has_issued():
            raise self._lost_error(f", but {issued} was issued by it")
        made = rotation.first(self._cluster_id, self._now())
        await self._store(made, None)
        self._existed = True
        logger.info("created certificate authority %s", self._name)
        return made

    async def check(self, has_issued: Callable[[], Awaitable[str]]) -> None:
        """Check that the authority can be used; one that was never created can.

        Raises :class:`BadCertificate`, :class:`BundleNameTaken`.
        """
        kept = await self._keeper.read(self._name)
        if kept is not None:
            self._verify(kept)
            return
        self._refuse_if_lost()
        if issued := await has_issued():
            self._existed = True
            raise self._lost_error(f", but {issued} was issued by it")

    def _refuse_if_lost(self) -> None:
        if self._existed:
            raise self._lost_error("")

    def _lost_error(self, why: str) -> BadCertificate:
        return BadCertificate(
            f"{self._keeper.where(self._name)} does not exist{why}. Restore it. "
            "The operator does not create another one, because existing "
            "certificates would no longer be trusted"
        )

    async def step(
        self,
        *,
        all_up_to_date: Callable[[Authorities], bool],
        pause: Callable[[Authorities], dt.timedelta],
        renewal: str = "",
    ) -> bool:
        """Take the next step of the authority's rotation; return whether one was due.

        See :func:`rotation.next_step`. ``all_up_to_date`` and ``pause`` are called with the
        authority as it is stored now: brokers' reports about an earlier one do not count.
        """
        kept = await self._keeper.read(self._name)
        if kept is None:
            self._refuse_if_lost()
            return False
        authorities = self._verify(kept)
        following = rotation.next_step(
            authorities,
            self._now(),
            all_up_to_date=all_up_to_date(authorities),
            renewal=renewal,
            pause=pause(authorities),
        )
        if following is authorities:
            return False
        # Written under the version that was read, so another operator's step conflicts.
        await self._store(following, kept)
        logger.info("certificate authority %s: %s", self._name, following.phase)
        return True

    def _verify(self, kept: StoredBundle) -> Authorities:
        """Return the authorities of a stored bundle, checked to be of this cluster.

        Raises :class:`BadCertificate` with the remedy.
        """
        try:
            authorities = read_authority(kept.data)
        except BadCertificate as error:
            raise BadCertificate(
                f"{self._keeper.where(self._name)}: {error}. Restore it. The "
                "operator does not create another one"
            ) from error
        if authorities.cluster_id != self._cluster_id:
            raise BadCertificate(
                f"{self._keeper.where(self._name)} belongs to cluster id "
                f"{authorities.cluster_id}, not {self._cluster_id}. Restore the right "
                "one, or delete it if that cluster no longer exists"
            )
        # From now on a missing authority counts as lost, not as never created.
        self._existed = True
        return authorities

    async def _store(self, authorities: Authorities, former: StoredBundle | None) -> None:
        await self._keeper.write(self._name, authority_data(authorities), former)
