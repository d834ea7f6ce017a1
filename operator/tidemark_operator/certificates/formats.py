"""Stored form of authorities and leaves: the data of a Secret, or the files of a folder.

The names are those of ``kubernetes.io/tls``. Unreadable data is never replaced: a new authority
would lock out all brokers.
"""

import datetime as dt
import hashlib
from collections.abc import Mapping

from tidemark.tls.files import CERTIFICATE, KEY, TRUSTED
from tidemark_operator.certificates.authority import BadCertificate, KeyPair, keys_match, split
from tidemark_operator.certificates.rotation import Authorities, RotationPhase

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


def leaf_data(leaf: KeyPair, trusted: bytes) -> dict[str, bytes]:
    """Return the data of a broker's Secret or folder."""
    return {CERTIFICATE: leaf.certificate, KEY: leaf.key, TRUSTED: trusted}


def read_leaf(data: Mapping[str, bytes]) -> KeyPair | None:
    """Return the leaf; None if it is missing or incomplete."""
    if not data.get(CERTIFICATE) or not data.get(KEY):
        return None
    return KeyPair(data[CERTIFICATE], data[KEY])


def digest(data: Mapping[str, bytes]) -> str:
    """Return the digest by which a broker reports its bundle
    (:class:`tidemark.tls.files.Contexts`).
    """
    return hashlib.sha256(data[CERTIFICATE] + data[TRUSTED]).hexdigest()
