"""Identity object of a store: its id, and the cluster that it belongs to.

A wrong endpoint, a wrong prefix or a file system that is not mounted must never look like an empty
tier. The first broker that uses a store writes ``tidemark.json``. Its store id is recorded in the
Cluster's status and expected from then on. Another id, or none, means *unavailable*: nothing is
copied or expired, and local data is kept (docs/explanation/architecture.md).
"""

import json
import uuid

from tidemark.reasons import Reason
from tidemark.tier.metadata.layout import IDENTITY_KEY
from tidemark.tier.stores.objects import (
    AlreadyExists,
    ObjectNotFound,
    ObjectStore,
    PreconditionFailed,
    StoreUnavailable,
)

_FORMAT_VERSION = 1


class WrongStore(StoreUnavailable):
    """The store answers, but it is not the one that contains this cluster's tier."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason=Reason.WRONG_STORE, retriable=False)


def ensure_identity(store: ObjectStore, cluster_id: str, expected_store_id: str) -> str:
    """Check that the store belongs to the cluster, and return the store's id.

    ``expected_store_id``: id that the cluster has recorded, "" before the first use. Only in that
    case a missing identity is created. Raises WrongStore, StoreUnavailable.
    """
    try:
        found = read_identity(store)
    # A store that was used before must have an identity: an empty one is the wrong place.
    except ObjectNotFound as error:
        if expected_store_id:
            raise WrongStore(
                f"{store.describe()} has no {IDENTITY_KEY}, but the tier's store is "
                f"{expected_store_id}: check endpoint, bucket, prefix or mount"
            ) from error
        found = _create(store, cluster_id)
    store_id, owner = found
    # Two clusters in one location would overwrite each other's heads.
    if owner != cluster_id:
        raise WrongStore(
            f"{store.describe()} belongs to cluster {owner}, not to {cluster_id}: give this "
            "cluster a bucket or prefix of its own, or, if that cluster is lost, take it over with "
            f"tidemark restore --from-cluster {owner}"
        )
    # The same cluster may have used several stores, but a tier has only one of them.
    if expected_store_id and store_id != expected_store_id:
        raise WrongStore(
            f"{store.describe()} is store {store_id}, but the tier's store is {expected_store_id}: "
            "check endpoint, bucket, prefix or mount"
        )
    return store_id


def hand_over(store: ObjectStore, from_cluster: str, to_cluster: str) -> None:
    """Transfer the store to another cluster, which restores its topics; the store id stays.

    May be repeated. Raises WrongStore if the store belongs to neither cluster.
    """
    found = store.get(IDENTITY_KEY)
    store_id, owner = _decoded(store, found.data)
    # An earlier attempt has succeeded already.
    if owner == to_cluster:
        return
    if owner != from_cluster:
        raise WrongStore(f"{store.describe()} belongs to cluster {owner}, not to {from_cluster}")
    # Compare-and-set, so that only one of two restoring clusters can succeed.
    try:
        store.replace(IDENTITY_KEY, _encode(store_id, to_cluster), found.version)
    # The write may have landed although its answer was lost.
    except (PreconditionFailed, StoreUnavailable):
        if read_identity(store)[1] != to_cluster:
            raise


def _encode(store_id: str, cluster_id: str) -> bytes:
    fields = {"formatVersion": _FORMAT_VERSION, "storeId": store_id, "clusterId": cluster_id}
    return json.dumps(fields).encode("utf-8")


def _create(store: ObjectStore, cluster_id: str) -> tuple[str, str]:
    """Create the identity, or read the one that another broker (or a write with a lost answer)
    created.
    """
    store_id = str(uuid.uuid4())
    try:
        store.create(IDENTITY_KEY, _encode(store_id, cluster_id))
    except (AlreadyExists, StoreUnavailable) as error:
        try:
            return read_identity(store)
        except ObjectNotFound:
            raise error from None
    return store_id, cluster_id


def read_identity(store: ObjectStore) -> tuple[str, str]:
    """Return (store id, cluster id). Raises ObjectNotFound if there is none, WrongStore."""
    return _decoded(store, store.get(IDENTITY_KEY).data)


def _decoded(store: ObjectStore, data: bytes) -> tuple[str, str]:
    """Return store id and cluster id from the identity object. Raises WrongStore."""
    try:
        fields = json.loads(data)
        version, found = fields["formatVersion"], (fields["storeId"], fields["clusterId"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WrongStore(
            f"{IDENTITY_KEY} in {store.describe()} is not an identity object"
        ) from error
    if version != _FORMAT_VERSION or not all(isinstance(text, str) for text in found):
        raise WrongStore(
            f"{store.describe()} has format version {version}, this program reads "
            f"{_FORMAT_VERSION}: upgrade it"
        )
    return found
