"""The object store as a container of Azure Blob Storage.

A conditional write compares the blob's ETag, which every write changes. Bulk deletes are blob
batches.

An upload that breaks off leaves uncommitted blocks. Azure lists them for no caller of ``obstore``
and discards them after a week.
"""

from typing import TYPE_CHECKING

from obstore.store import AzureStore

from tidemark.reasons import Reason
from tidemark.tier.stores.azure_config import AzureConfig
from tidemark.tier.stores.bucket import (
    CLOCK_SKEWED,
    OTHER_SERVER,
    BucketStore,
    Dialect,
    ErrorAdvice,
    client_options,
    retry_config,
)

if TYPE_CHECKING:
    from obstore.store import AzureConfig as _Config

_AZURE = Dialect(
    compared="e_tag",
    # Azure's limit of requests in a batch.
    keys_at_once=256,
    # Answers within a batch have no body, so their codes are not known. A wrong clock has the code
    # of wrong credentials.
    phrases={
        "Request date header too old": CLOCK_SKEWED,
        "The specified blob does not exist": "BlobNotFound",
        "The specified container does not exist": "ContainerNotFound",
    },
    advice=(
        ErrorAdvice(
            frozenset({"ContainerNotFound", "ContainerBeingDeleted"}),
            Reason.BUCKET_MISSING,
            "the container does not exist: create it, or correct the name",
            False,
        ),
        ErrorAdvice(
            # Both statuses (409, 412) would look like the conflict of a conditional write.
            frozenset({"BlobImmutableDueToPolicy", "LeaseIdMissing"}),
            Reason.STORE_ACCESS_DENIED,
            "an immutability policy, a legal hold or a lease holds the blob: remove it",
            True,
        ),
        ErrorAdvice(
            frozenset({"AuthenticationFailed", "AuthorizationFailure", "401", "403"}),
            Reason.STORE_ACCESS_DENIED,
            "access is denied: assign the identity the role Storage Blob Data Contributor on the "
            "container, or correct the key or token (of a Cluster, in the Secret that "
            "credentialsSecretRef names)",
            False,
        ),
        ErrorAdvice(
            frozenset({OTHER_SERVER}),
            Reason.STORE_ERROR,
            "what answers there is not Azure Blob Storage: correct the endpoint",
            False,
        ),
    ),
)


def azure_store(config: AzureConfig, container: str) -> BucketStore:
    """Return the store of one container; nothing is connected yet."""

    def open_container(request_s: int) -> AzureStore:
        # Without a credential ``obstore`` takes the identity of the workload (a token file that
        # AZURE_FEDERATED_TOKEN_FILE names), else that of the machine. A given credential is named
        # by its type, so that none of the environment takes precedence.
        credential: _Config = {}
        if config.has_account_key:
            credential = {"account_key": config.credential, "credential_type": "access_key"}
        elif config.credential:
            credential = {"sas_key": config.credential, "credential_type": "sas_token"}
        return AzureStore(
            container,
            prefix=config.prefix or None,
            config={
                "account_name": config.account,
                "endpoint": config.address,
                "use_emulator": False,
                **credential,
            },
            client_options=client_options(config.address, request_s),
            retry_config=retry_config(request_s),
        )

    prefix = f", prefix {config.prefix}" if config.prefix else ""
    return BucketStore(_AZURE, open_container, f"container {container} at {config.address}{prefix}")
