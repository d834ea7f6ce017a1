"""Remote storage of the Cluster, from the manifest to the JSON for the brokers.

A storage is accepted if the credentials are readable, the buckets exist, and the store's identity
object is ours. Missing buckets are created for a store that was never used. Then location and store
id are written into the Cluster's status. From then on another identity, or none, means unavailable.
Another location is refused while topics have data in the old one. Credentials reach brokers over
the control connection only and are written nowhere.
"""

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tidemark.error_text import error_text
from tidemark.message_text import count
from tidemark.reasons import Reason
from tidemark.tier.conditional_writes import check_conditional_writes
from tidemark.tier.identity import ensure_identity
from tidemark.tier.maintenance.audit_record import AuditUnreadable, read_record
from tidemark.tier.maintenance.sweep_lease import SweepLease
from tidemark.tier.metadata.topics import TopicCatalog
from tidemark.tier.open import open_store
from tidemark.tier.stores.config import (
    OPTIONAL_CREDENTIALS,
    credential_names,
    ensure_place,
    from_json,
    location_of,
    settings_of,
)
from tidemark.tier.stores.config_fields import InvalidConfig
from tidemark.tier.stores.endpoint import S3Endpoint, hands_out_credentials
from tidemark.tier.stores.key_ring import KEYS_NAME
from tidemark.tier.stores.objects import ObjectStore, StoreError, StoreUnavailable
from tidemark.tier.stores.s3_config import S3Config
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller.state.model import Audits
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.kinds import Json
from tidemark_operator.kube.secrets import OfferedTo, SecretProblem, read_secret

logger = logging.getLogger(__name__)

T = TypeVar("T")
CHECK_TIMEOUT_S = 30.0


class RemoteStorageProblem(Exception):
    """The storage cannot be used; the message goes into a condition and says what to do."""


_ACCESS_DENIED = Reason.STORE_ACCESS_DENIED
#: Reasons of errors that may come from another server than a store, or from none.
_FROM_ELSEWHERE = frozenset(
    {
        Reason.STORE_UNREACHABLE,
        Reason.STORE_NOT_S3,
        Reason.STORE_THROTTLED,
        Reason.STORE_ERROR,
    }
)


@dataclass(frozen=True, slots=True)
class UsableStorage:
    """An accepted storage: the JSON for the brokers, and the fields that the status records."""

    text: str
    location: Json
    store_id: str


def asks_to_create(spec: Mapping[str, Any]) -> bool:
    """Return whether the manifest requests the creation of missing buckets."""
    return any(bool(section.get("createBuckets")) for section in spec.values() if section)


def credentials_secret(spec: Mapping[str, Any]) -> str:
    """Return the name of the Secret with a storage's keys, "" for none."""
    kind = next(iter(location_of(spec) or {}), "")
    return str(((spec.get(kind) or {}).get("credentialsSecretRef") or {}).get("name") or "")


async def resolve(api: KubeApi, namespace: str, spec: Mapping[str, Any]) -> str:
    """Return the JSON for the brokers, with the credentials and encryption keys of Secrets.

    Without a Secret, brokers use the identity of their own pods. Raises
    :class:`RemoteStorageProblem`.
    """
    ((kind, fields),) = (location_of(spec) or {}).items()
    name, names = credentials_secret(spec), credential_names(spec)
    keys = await _credentials(api, namespace, name, names) if name else {}
    # Further texts of Secrets, each with the key of the Secret that has it.
    for reference, field, secret_key in (
        ("caSecretRef", S3Config.ca_name, S3Config.ca_secret_key),
        ("encryptionKeysSecretRef", KEYS_NAME, KEYS_NAME),
    ):
        secret = str((spec[kind].get(reference) or {}).get("name") or "")
        if secret:
            texts = await _credentials(api, namespace, secret, (secret_key,))
            keys[field] = texts[secret_key]
    return json.dumps({kind: {**fields, **settings_of(spec), **keys}}, sort_keys=True)


async def _credentials(
    api: KubeApi, namespace: str, name: str, names: Sequence[str]
) -> dict[str, str]:
    try:
        return await read_secret(
            api, namespace, name, names, OfferedTo.CLUSTER, optional=OPTIONAL_CREDENTIALS
        )
    except SecretProblem as problem:
        raise RemoteStorageProblem(str(problem)) from problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Terms on which a storage is accepted.

    ``store_id``: required identity, "" for a store without one. ``create``: create what is missing.
    ``allowed_endpoints``: hosts that are allowed although they may hand out credentials.
    ``credentials_secret``: name of the Secret with the keys, "" for none.
    """

    cluster_id: str
    store_id: str
    create: bool
    allowed_endpoints: frozenset[str]
    credentials_secret: str = ""


async def accept(text: str, location: Json, terms: Terms) -> UsableStorage:
    """Connect to a remote store, and check that it is the expected one; return it as usable.

    ``text`` is the configuration for brokers (JSON), and ``location`` its part that the status
    records. A new store gets an id, which is stored in it. Runs in a thread with a timeout. Raises
    :class:`RemoteStorageProblem` with a message for the Cluster's condition.
    """
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            # The store's client blocks, and an address that drops packets must not block the main
            # loop.
            store_id = await asyncio.to_thread(_check, text, terms)
    except TimeoutError as error:
        raise RemoteStorageProblem(
            f"the store did not respond within {CHECK_TIMEOUT_S:.0f} s"
        ) from error
    except InvalidConfig as error:
        raise RemoteStorageProblem(str(error)) from error
    except StoreUnavailable as error:
        raise RemoteStorageProblem(_shown(error, terms)) from error
    return UsableStorage(text, location, store_id)


async def last_sweep(text: str) -> str | None:
    """Return what the last sweep of an accepted storage has left, as text.

    "" for nothing, None without a sweep or if the store does not answer.
    """
    try:
        return await _read_store(text, _last_sweep)
    except (TimeoutError, StoreError, InvalidConfig) as error:
        logger.info("the leftovers of the last sweep are unknown: %s", error_text(error))
        return None


async def _read_store(text: str, read: Callable[[ObjectStore], T]) -> T:
    """Read from an accepted storage in a thread, with a timeout."""
    async with asyncio.timeout(CHECK_TIMEOUT_S):
        return await asyncio.to_thread(lambda: read(open_store(from_json(text))))


def _last_sweep(store: ObjectStore) -> str | None:
    """Return a summary of the unreferenced data that the last sweep found in the store.

    "" if it found nothing, None if the result is not known. Blocks.
    """
    left = SweepLease(store, "", wall_ms).left()
    if left is None:
        return None
    # One part for each kind of remaining data.
    found = []
    if left.orphans or left.uploads:
        objects, uploads = count(left.orphans, "object"), count(left.uploads, "unfinished upload")
        found.append(f"{objects} ({left.size_bytes} bytes) and {uploads} are unreferenced")
    if left.unknown:
        found.append(f"{count(left.unknown, 'object')} in directories without a manifest")
    if left.passed_over:
        found.append(f"{count(left.passed_over, 'read')} failed")
    more = ". Brokers remove objects that are old enough. To list all of them: tidemark sweep"
    return "; ".join(found) + more if found else ""


async def last_audits(text: str) -> Audits | None:
    """Return the results of audits in an accepted storage, None if the store does not answer."""
    try:
        record = await _read_store(text, read_record)
    except AuditUnreadable as error:
        return Audits(problem=str(error))
    except (TimeoutError, StoreError, InvalidConfig) as error:
        logger.info("the results of audits are unknown: %s", error_text(error))
        return None
    return Audits(record.topics)


async def is_deleted(text: str, topic_id: uuid.UUID) -> bool:
    """Return whether an accepted storage has the tombstone of a topic.

    Raises :class:`RemoteStorageProblem`.
    """
    try:
        return await _read_store(text, lambda store: TopicCatalog(store).is_deleted(topic_id))
    except (TimeoutError, StoreError, InvalidConfig, ValueError) as error:
        raise RemoteStorageProblem(f"the tier is unavailable: {error_text(error)}") from error


def _shown(error: StoreUnavailable, terms: Terms) -> str:
    """Return the text of a store's error for a status.

    About an address that was never accepted, it must not distinguish an open port from a closed
    one, nor reveal what is behind it. Authors of manifests must not be able to scan our network.
    """
    if error.reason == _ACCESS_DENIED and terms.credentials_secret:
        return f"{error} (the credentials are in Secret {terms.credentials_secret})"
    if terms.store_id or error.reason not in _FROM_ELSEWHERE:
        return str(error)
    logger.warning("remote storage was not accepted: %s", error)
    return (
        "the endpoint does not respond like the configured store. Check the endpoint "
        "and the network (for details, see the operator's log)"
    )


def _check(text: str, terms: Terms) -> str:
    """Check a store, and return its id; blocks, and raises the store's errors.

    A new store must support conditional writes, and gets an id.
    """
    config = from_json(text)
    # Addresses first: nothing may be sent to a metadata service.
    for endpoint in config.endpoints():
        _check_endpoint(config.kind, endpoint, terms.allowed_endpoints)
    ensure_place(config, create=terms.create, in_use=bool(terms.store_id))
    store = open_store(config)
    if not terms.store_id:
        # Checked before anything is written. Brokers probe the store again before they use it.
        check_conditional_writes(store, now_ms=wall_ms())
    return ensure_identity(store, terms.cluster_id, terms.store_id)


def _check_endpoint(kind: str, endpoint: S3Endpoint, allowed: frozenset[str]) -> None:
    """Reject an address that hands out the machine's own credentials."""
    if endpoint.host in allowed:
        return
    if any(hands_out_credentials(address) for address in endpoint.addresses()):
        raise InvalidConfig(
            f"remoteStorage: {kind}.endpoint: {endpoint.host} is a link-local or "
            "metadata address. Use another one, or start the operator with "
            f"--allowed-endpoints={endpoint.host}"
        )
