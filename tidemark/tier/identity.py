"""The identity object of a store: which store this is, and which cluster it belongs to.

A wrong endpoint, a wrong prefix or a file system that is not mounted must never look like an empty
tier. The first broker to use a store writes ``tidemark.json``; its store id then stands in the
Cluster's status and is expected ever after. Another id, or none, means *unavailable*: nothing is
copied or expired, local data is kept (docs/architecture.md, "Where state lives").
"""

import json
import uuid

from tidemark.tier.layout import IDENTITY_KEY
from tidemark.tier.objects import AlreadyExists, ObjectNotFound, ObjectStore, StoreUnavailable

_FORMAT_VERSION = 1


class WrongStore(StoreUnavailable):
    """The store answers, but it is not the one that this cluster's tier lies in."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason="WrongStore", retriable=False)


def ensure_identity(store: ObjectStore, cluster_id: str, expected_store_id: str) -> str:
    """Check the store's identity and give back its store id. Only while none is expected ("") is a
    missing identity created. Raises WrongStore, StoreUnavailable."""
    try:
        found = _read(store)
    except ObjectNotFound as error:
        if expected_store_id:
            raise WrongStore(
                f"{store.describe()} has no {IDENTITY_KEY}, but the tier's store is "
                f"{expected_store_id}: check endpoint, bucket, prefix or mount"
            ) from error
        found = _create(store, cluster_id)
    store_id, owner = found
    if owner != cluster_id:
        raise WrongStore(
            f"{store.describe()} belongs to cluster {owner}, not to {cluster_id}: give this "
            "cluster a bucket or prefix of its own"
        )
    if expected_store_id and store_id != expected_store_id:
        raise WrongStore(
            f"{store.describe()} is store {store_id}, but the tier's store is {expected_store_id}: "
            "check endpoint, bucket, prefix or mount"
        )
    return store_id


def _create(store: ObjectStore, cluster_id: str) -> tuple[str, str]:
    """Create the identity, or read the one that another broker (or our own lost answer) made."""
    store_id = str(uuid.uuid4())
    fields = {"formatVersion": _FORMAT_VERSION, "storeId": store_id, "clusterId": cluster_id}
    try:
        store.create(IDENTITY_KEY, json.dumps(fields).encode("utf-8"))
    except (AlreadyExists, StoreUnavailable) as error:
        try:
            return _read(store)
        except ObjectNotFound:
            raise error from None
    return store_id, cluster_id


def _read(store: ObjectStore) -> tuple[str, str]:
    data = store.get(IDENTITY_KEY).data
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
