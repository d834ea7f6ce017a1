"""Meaning and exit of each condition reason, by kind.

``docs/reference/conditions.md`` is generated from these tables. A condition's message describes
one object; the tables describe what is true whenever the reason occurs.
"""

import dataclasses
from collections.abc import Mapping
from typing import TypeAlias

from tidemark.reasons import Reason


@dataclasses.dataclass(frozen=True, slots=True)
class ReasonEntry:
    """Row of a table: ``conditions`` are those with the reason, such as ``Ready=False``."""

    conditions: str
    meaning: str
    action: str


#: Rows by reason, as in a status.
ReasonTable: TypeAlias = Mapping[str, ReasonEntry]

_NOTHING = "Nothing to do."

TOPIC: ReasonTable = {
    Reason.PENDING: ReasonEntry(
        "Ready=Unknown", "No operator has reconciled the object yet.", "Start the operator."
    ),
    Reason.SERVING: ReasonEntry(
        "Ready=True",
        "Every partition has a leader that has acknowledged leadership, so producers can write.",
        _NOTHING,
    ),
    Reason.SETTLED: ReasonEntry(
        "Reconciling=False, Stalled=False", "No change is in progress.", _NOTHING
    ),
    Reason.PROGRESSING: ReasonEntry("Stalled=False", "No change is blocked.", _NOTHING),
    Reason.STALLED: ReasonEntry(
        "Reconciling=False", "The object needs attention.", "See the condition Stalled."
    ),
    Reason.PAUSED: ReasonEntry(
        "Reconciling=False, Stalled=False; Ready=Unknown on a new Topic; Succeeded=Unknown",
        "The annotation tidemark.dev/paused is true. The configuration in force stays, and a "
        "RecordDeletion deletes nothing more.",
        "Remove the annotation.",
    ),
    Reason.BROKERS_MISSING: ReasonEntry(
        "Ready=False, Reconciling=True",
        "Fewer brokers are live than the replication factor requires, so the topic or its added "
        "partitions were not created.",
        "Start brokers, or set enable.under.replicated.topic.creation on the Cluster (KIP-409).",
    ),
    Reason.PLACING: ReasonEntry(
        "Ready=False, Reconciling=True", "Partitions are being placed.", "Wait."
    ),
    Reason.LEADERS_STARTING: ReasonEntry(
        "Ready=False, Reconciling=True",
        "Leaders were elected or partitions created, but some leaders have not acknowledged "
        "leadership. Clients cannot write to these partitions yet.",
        "Wait. If it persists, look at the logs of the brokers in the message.",
    ),
    Reason.PARTITIONS_OFFLINE: ReasonEntry(
        "Ready=False, Reconciling=True",
        "No live broker has all committed records, so the partitions have no leader.",
        "Start one of the brokers in the message, or delete the Broker of one that never returns.",
    ),
    Reason.ELECTION_PENDING: ReasonEntry(
        "Ready=False, Reconciling=True",
        "All live replicas restarted after a crash and may lack the latest records. Too few have "
        "reported their log ends (KIP-966).",
        "Start the other brokers in the message, or accept the copy in the message with "
        "tidemark.dev/accept-copy.",
    ),
    Reason.LAST_COPY_MISSING: ReasonEntry(
        "Ready=False, Stalled=True",
        "A partition has no complete copy left, because the log directory of the last one was "
        "replaced.",
        "Restore the log directory of a broker that had a copy. Alternatively, accept another "
        "copy and the loss of other records with tidemark.dev/accept-copy and the value in the "
        "message.",
    ),
    Reason.STORAGE_FAILED: ReasonEntry(
        "Ready=False, Reconciling=True; FullyReplicated=False",
        "The storage of a leader has failed, and no other live replica has all records. "
        "FullyReplicated also reports failed storage of other replicas.",
        "Repair that log directory. See the condition Ready of the Broker for the cause.",
    ),
    Reason.DELETION_PENDING: ReasonEntry(
        "Ready=True, Reconciling=True",
        "The Topic is deleted, and spec.deletionGracePeriod has not ended. The topic is still "
        "served. status.deletion.due has the end.",
        "Nothing to do. To keep the topic, set deletionPolicy: Orphan, and later adopt it with a "
        "new Topic "
        "(tidemark.dev/adopt-topic-id). To delete it at once, set deletionGracePeriod: 0s.",
    ),
    Reason.DELETING: ReasonEntry(
        "Ready=False",
        "The Topic is being deleted: first its replicas, then its data in the tier.",
        "Wait. If Stalled is True, follow its message.",
    ),
    Reason.NAME_TAKEN: ReasonEntry(
        "Ready=False, Stalled=True",
        "Another Topic has this topic name.",
        "Delete this Topic, and create it with another topicName if you need both.",
    ),
    Reason.ADOPTION_REQUIRED: ReasonEntry(
        "Ready=False, Stalled=True",
        "The topic name exists under an id that belongs to no Topic.",
        "Annotate the Topic with tidemark.dev/adopt-topic-id and the id in the message. "
        "Alternatively, delete the Topic and create it with another topicName.",
    ),
    Reason.ADOPTION_REFUSED: ReasonEntry(
        "Stalled=True; Ready=False before anything is placed",
        "tidemark.dev/adopt-topic-id or tidemark.dev/restore-from-tier names a topic that this "
        "Topic cannot take over.",
        "Correct the annotation (the message lists the ids that can be adopted), or remove it.",
    ),
    Reason.PARTITIONS_BEYOND_SPEC: ReasonEntry(
        "Stalled=True",
        "Brokers have more partitions of this topic than spec.partitions, for example after a "
        "restore of etcd. All of them are served.",
        "Set spec.partitions to the number in the message or more.",
    ),
    Reason.ADOPTING: ReasonEntry(
        "Ready=False, Reconciling=True",
        "The Topic has taken over the id of an existing topic, and its partitions follow.",
        "Wait.",
    ),
    Reason.REBUILDING: ReasonEntry(
        "Ready=False, Reconciling=True",
        "PartitionSlices are lost or outdated, and the partitions are rebuilt from broker "
        "reports. Until then no leader is elected, and nothing is created or deleted.",
        "Start the brokers in the message. To give up data that only they have, set "
        "tidemark.dev/rebuild-without to the value in the message.",
    ),
    Reason.SLICE_FULL: ReasonEntry(
        "Ready=False, Stalled=True",
        "A PartitionSlice has reached the size limit of the API server.",
        "Use fewer partitions, or another Cluster.",
    ),
    Reason.REPLICATION_FACTOR_PENDING: ReasonEntry(
        "Stalled=True",
        "The replication factor cannot be changed, because brokers or leaders are missing. The "
        "topic is served with its current replicas.",
        "Start brokers, or restore the previous replicationFactor.",
    ),
    Reason.REPLICATION_FACTOR_CHANGING: ReasonEntry(
        "FullyReplicated=False",
        "Replicas are being added or removed until their number matches spec.replicationFactor.",
        "Wait.",
    ),
    Reason.STORAGE_UNAVAILABLE: ReasonEntry(
        "Ready=False, Stalled=True",
        "Tiering cannot start, because the remote storage is not configured or not available.",
        "Set a working remoteStorage on the Cluster, and set remote.log.storage.system.enable.",
    ),
    Reason.LOCAL_RETENTION_TOO_LONG: ReasonEntry(
        "Stalled=True; Ready=False before anything is placed",
        "Local retention is longer than the total retention from a Cluster default. An existing "
        "topic is still served and expires by the total retention.",
        "Lower localRetention, or set retention.ms or retention.bytes on the Topic.",
    ),
    Reason.COPY_LAG_TOO_LONG: ReasonEntry(
        "Stalled=True; Ready=False before anything is placed",
        "remote.copy.lag.ms or remote.copy.lag.bytes (KIP-1241) exceeds the local retention, or a "
        "quarter of spec.tiering.maxLag. An existing topic is still served.",
        "Lower the key or set it to 0 in spec.config, or raise the limit that the message names.",
    ),
    Reason.COMPACTED: ReasonEntry(
        "Stalled=True; Ready=False before anything is placed",
        "Tiering is enabled, but log.cleanup.policy of the Cluster would compact the topic. A "
        "topic with data in the tier is not compacted. Any other topic is not tiered.",
        "Set cleanup.policy to delete in spec.config, or disable tiering.",
    ),
    Reason.ALL_IN_SYNC: ReasonEntry("FullyReplicated=True", "All replicas are in sync.", _NOTHING),
    Reason.PLACEHOLDERS: ReasonEntry(
        "FullyReplicated=False",
        "Replicas have no broker yet (KIP-409). All others are in sync, and writes are accepted.",
        "Nothing to do. A broker that joins receives these replicas.",
    ),
    Reason.UNDER_MIN_ISR: ReasonEntry(
        "FullyReplicated=False",
        "Replicas have no broker yet (KIP-409), and the others are fewer than min.insync.replicas. "
        "Writes with acks=all are refused.",
        "Start more brokers, or lower min.insync.replicas in spec.config.",
    ),
    Reason.REPLICAS_BEHIND: ReasonEntry(
        "FullyReplicated=False",
        "Replicas are catching up, or their brokers are down. The message names both.",
        "Start the brokers that are down, or delete the Brokers that never return. Wait for "
        "replicas that are catching up.",
    ),
    Reason.MIN_INSYNC_REPLICAS_TOO_HIGH: ReasonEntry(
        "ConfigEffective=False",
        "min.insync.replicas in spec.config exceeds spec.replicationFactor, so "
        "spec.replicationFactor is in force.",
        "Lower min.insync.replicas, or raise spec.replicationFactor.",
    ),
    Reason.ENABLED: ReasonEntry(
        "TieringSettled=True", "Closed segments are copied to the tier.", _NOTHING
    ),
    Reason.DISABLING: ReasonEntry(
        "Ready=True, Reconciling=True; TieringSettled=False",
        "Tiering is being disabled. Every broker with a replica must acknowledge it.",
        "Wait. Start the brokers in the message, or delete their Brokers.",
    ),
    Reason.NO_PROGRESS: ReasonEntry(
        "Stalled=True",
        "A disablement has made no progress for ten minutes.",
        "Start the brokers in the message, delete their Brokers, or delete the Topic.",
    ),
    Reason.WITHIN_MAX_LAG: ReasonEntry(
        "TieringLagging=False",
        "Committed records are in the tier within spec.tiering.maxLag.",
        _NOTHING,
    ),
    Reason.MAX_LAG_EXCEEDED: ReasonEntry(
        "TieringLagging=True",
        "Committed records have waited for the tier longer than spec.tiering.maxLag, or more of "
        "them wait. They are lost if all replicas are.",
        "Follow the message: repair the store, give the brokers more copier threads or quota, end "
        "open transactions, or raise spec.tiering.maxLag.",
    ),
    Reason.COPYING_PAUSED: ReasonEntry(
        "TieringLagging=True",
        "spec.tiering.paused is true, so nothing is copied. Local data that is not in the tier "
        "stays on the disks of the brokers.",
        "Remove spec.tiering.paused.",
    ),
    Reason.DISABLED: ReasonEntry(
        "TieringSettled=True",
        "Tiering is disabled. With policy Retain, data in the tier stays readable until its "
        "retention ends, and local data does not expire before it.",
        "Plan the disk space in the message.",
    ),
    Reason.OBJECT_DAMAGED: ReasonEntry(
        "TierIntegrity=False",
        "An object in the tier differs from the copied one, and reads of its range fail. "
        "Alternatively, a partition's head is older than before, and its data is not copied, "
        "deleted or swept.",
        "Restore the object (its key is in the message), or give up the records.",
    ),
    Reason.AUDIT_PASSED: ReasonEntry(
        "RemoteIntegrity=True",
        "The latest audit of the tier found no problem with the topic.",
        _NOTHING,
    ),
    Reason.DAMAGE_FOUND: ReasonEntry(
        "RemoteIntegrity=False",
        "The latest audit of the tier found missing or changed objects of the topic. The "
        "condition stays until the next audit.",
        "Restore the objects (the message names the worst, the audit lists all), or give up "
        "their records. Then run tidemark spark audit again.",
    ),
    Reason.MANIFEST_CONTRADICTS: ReasonEntry(
        "RemoteIntegrity=False",
        "The latest audit of the tier found manifests that are unreadable or inconsistent: "
        "offsets without a segment or with two, or epochs that decrease.",
        "Restore the partition's head and pages from the bucket's versions, or report it. Then "
        "run tidemark spark audit again.",
    ),
    Reason.NOT_AUDITED: ReasonEntry(
        "RemoteIntegrity=Unknown",
        "The topic has never been audited in the tier, or the audit record is unreadable.",
        "To audit the tier, run tidemark spark audit regularly.",
    ),
    Reason.AUDIT_OUTDATED: ReasonEntry(
        "RemoteIntegrity=Unknown",
        "The latest audit found no problem, but is more than 45 days old.",
        "Run tidemark spark audit again.",
    ),
}

#: Reported by a leader. The reason of TieringSettled, and of Ready while a new leader cannot read
#: the tier that it needs.
TIER: ReasonTable = {
    Reason.TAKING_OVER_FROM_TIER: ReasonEntry(
        "Ready=False, Reconciling=True",
        "The elected leader may lack records that are in the tier, and reads the tier first.",
        "Wait.",
    ),
    Reason.TIER_UNAVAILABLE: ReasonEntry(
        "Ready=False, Reconciling=True",
        "The elected leader must read the tier, but the tier is unavailable.",
        "Repair the remote storage. The message has its response.",
    ),
    Reason.STORAGE_ERROR: ReasonEntry(
        "Ready=False; TieringSettled=False",
        "The leader's local storage has failed, or a segment of its log is damaged and not copied.",
        "See the message, and the condition Ready of the Broker.",
    ),
    Reason.TIER_INTEGRITY: ReasonEntry(
        "TieringSettled=False",
        "An object in the tier differs from the one that was written. See the condition "
        "TierIntegrity.",
        "Restore the object, or give up the records.",
    ),
    Reason.CUSTOM_METADATA_TOO_LARGE: ReasonEntry(
        "TieringSettled=False",
        "The storage returned more custom metadata than the limit (KIP-917), so copying has "
        "stopped.",
        "Raise remote.log.metadata.custom.metadata.max.bytes, then restart the broker or move "
        "the leader.",
    ),
    Reason.LOCAL_DATA_MISSING: ReasonEntry(
        "TieringSettled=False",
        "The local log does not continue at the end of the tier, so a copy would leave a gap.",
        "Elect a replica that has these records, or delete the records up to the start of the "
        "local log.",
    ),
    Reason.LOG_DIVERGED: ReasonEntry(
        "TieringSettled=False",
        "The leader's log differs from the tier. The leader copies the data from the tier.",
        "Wait.",
    ),
    Reason.MANIFEST_NOT_FOUND: ReasonEntry(
        "TieringSettled=False",
        "The head of a partition is missing in the store.",
        "Check the endpoint, bucket and prefix. Restore the object.",
    ),
    Reason.MANIFEST_PAGE_NOT_FOUND: ReasonEntry(
        "TieringSettled=False", "A manifest page is missing in the store.", "Restore the object."
    ),
    Reason.MANIFEST_CORRUPT: ReasonEntry(
        "TieringSettled=False",
        "A head or page is damaged, or was written by a newer version. Nothing is copied or "
        "deleted.",
        "Upgrade the brokers, or restore the object.",
    ),
    Reason.MANIFEST_REFUSED: ReasonEntry(
        "TieringSettled=False", "The change violates a rule of the manifest.", "Follow the message."
    ),
    Reason.MANIFEST_CONTENDED: ReasonEntry(
        "TieringSettled=False",
        "Other writers keep changing the head. The broker retries.",
        "Look for another cluster that uses the same bucket and prefix.",
    ),
    Reason.REMOTE_OBJECT_MISSING: ReasonEntry(
        "TieringSettled=False",
        "An object in the manifest is missing in the store.",
        "Restore the object, or give up the records. Check whether another program deletes "
        "objects.",
    ),
    Reason.OBJECT_VERSION_UNSUPPORTED: ReasonEntry(
        "TieringSettled=False",
        "A newer version of Tidemark wrote an object in the tier, in a format that the broker does "
        "not know. Reads of its range fail and are retried. Nothing is lost.",
        "Upgrade all brokers to the newest version that has used this tier.",
    ),
    Reason.FENCED: ReasonEntry(
        "TieringSettled=False",
        "A newer leader or tiered epoch has claimed the head, so this leader has stopped.",
        "Wait.",
    ),
    Reason.TOPIC_DELETED: ReasonEntry(
        "TieringSettled=False", "The head is the tombstone of a deleted topic.", "Wait."
    ),
    Reason.REMOTE_LOG_ERROR: ReasonEntry(
        "TieringSettled=False",
        "Another error occurred. The broker retries.",
        "Report it with the message and the broker's log.",
    ),
    Reason.REMOTE_STORAGE_NOT_CONFIGURED: ReasonEntry(
        "TieringSettled=False",
        "The Cluster has no remote storage.",
        "Set remoteStorage on the Cluster.",
    ),
    Reason.REMOTE_STORAGE_NOT_VERIFIED: ReasonEntry(
        "TieringSettled=False", "The broker is verifying the id of the store.", "Wait."
    ),
    Reason.INVALID_REMOTE_STORAGE: ReasonEntry(
        "TieringSettled=False",
        "The broker cannot use the accepted storage configuration.",
        "Correct remoteStorage of the Cluster.",
    ),
    Reason.WRONG_STORE: ReasonEntry(
        "TieringSettled=False",
        "The store is available, but does not contain this cluster's tier. Nothing is copied, "
        "expired or considered empty.",
        "Correct the endpoint, bucket, prefix or mount.",
    ),
    Reason.BUCKET_MISSING: ReasonEntry(
        "TieringSettled=False", "The bucket does not exist.", "Create it, or correct the name."
    ),
    Reason.BUCKET_NOT_CONFIGURED: ReasonEntry(
        "TieringSettled=False",
        "A segment is in a bucket that is no longer configured.",
        "Add that bucket to spec.remoteStorage.s3.buckets again.",
    ),
    Reason.ENCRYPTION_KEY_MISSING: ReasonEntry(
        "TieringSettled=False",
        "A segment is encrypted with a key that is not among the encryption keys of the remote "
        "storage, or that has other bytes there. Nothing is lost.",
        "Restore the line of that key in the Secret of encryptionKeysSecretRef.",
    ),
    Reason.ENCRYPTION_KEY_UNAVAILABLE: ReasonEntry(
        "TieringSettled=False",
        "AWS KMS does not decrypt an encryption key of the remote storage: the KMS key is disabled "
        "or deleted, the broker's identity has no permission, or KMS does not answer. The broker "
        "retries. Nothing is lost.",
        "Do what the message says: enable the key, allow kms:Decrypt, or repair the network.",
    ),
    Reason.FOREIGN_CUSTOM_METADATA: ReasonEntry(
        "TieringSettled=False",
        "The custom metadata of a segment belongs to another storage manager.",
        "Use the storage manager that wrote it.",
    ),
    Reason.STORE_ACCESS_DENIED: ReasonEntry(
        "TieringSettled=False",
        "The store rejects the credentials or lacks a permission for them.",
        "Correct the keys in the Secret of credentialsSecretRef, or allow them to read, write, "
        "delete and list.",
    ),
    Reason.STORE_CREDENTIALS_MISSING: ReasonEntry(
        "TieringSettled=False",
        "The broker has no credentials for the store: there is no Secret, and its pod has no "
        "identity in the cloud, or the cloud refuses it. The message has the sources that were "
        "tried.",
        "Annotate the ServiceAccount of the brokers, correct the role's trust policy, or set "
        "credentialsSecretRef.",
    ),
    Reason.STORE_FULL: ReasonEntry(
        "TieringSettled=False", "The store is full.", "Free space, or enlarge the store."
    ),
    Reason.STORE_PERMISSION_DENIED: ReasonEntry(
        "TieringSettled=False",
        "The broker has no write permission for the directory of the store.",
        "Give the broker's user write permission.",
    ),
    Reason.STORE_NOT_A_FILE: ReasonEntry(
        "TieringSettled=False",
        "The directory of the store contains a link or another entry that is not a file in place "
        "of an object.",
        "Remove the entry in the message. It is neither read nor written.",
    ),
    Reason.STORE_INPUT_OUTPUT_ERROR: ReasonEntry(
        "TieringSettled=False", "The filesystem of the store has failed.", "Check that filesystem."
    ),
    Reason.REMOTE_STORAGE_UNAVAILABLE: ReasonEntry(
        "TieringSettled=False", "The store is temporarily unusable.", "Follow the message."
    ),
    Reason.STORE_NOT_S3: ReasonEntry(
        "TieringSettled=False",
        "The endpoint does not respond like an S3 service.",
        "Correct the endpoint.",
    ),
    Reason.STORE_UNREACHABLE: ReasonEntry(
        "TieringSettled=False",
        "The endpoint does not respond.",
        "Check that the store runs, its address and the network.",
    ),
    Reason.STORE_THROTTLED: ReasonEntry(
        "TieringSettled=False",
        "The store answers 429 or 503: it limits the rate of requests, is overloaded, or does not "
        "run behind its address. The broker repeats them.",
        "Check that the store runs, raise its limits, or spread the tier over more buckets.",
    ),
    Reason.STORE_CLOCK_SKEWED: ReasonEntry(
        "TieringSettled=False",
        "The store refuses requests, because the broker's clock differs from its own.",
        "Correct the clock of the node.",
    ),
    Reason.STORE_WITHOUT_ETAGS: ReasonEntry(
        "TieringSettled=False",
        "The store returns no ETags, so conditional writes are impossible.",
        "Use a store with ETags.",
    ),
    Reason.STORE_WITHOUT_CONDITIONAL_WRITES: ReasonEntry(
        "TieringSettled=False",
        "The store ignores If-Match or If-None-Match, always or for concurrent writers. Brokers "
        "could overwrite each other's commits. Nothing is copied, expired or deleted.",
        "Use a store, version or setting with conditional writes.",
    ),
    Reason.STORE_NOT_IMPLEMENTED: ReasonEntry(
        "TieringSettled=False",
        "The store does not implement a request that Tidemark needs.",
        "Use another store, or another version of it.",
    ),
    Reason.STORE_REFUSES_DELETES: ReasonEntry(
        "TieringSettled=False",
        "The store rejects the deletion of some objects. All others are deleted.",
        "Remove the policy, lock or legal hold that protects the objects. The message names one.",
    ),
    Reason.STORE_ERROR: ReasonEntry(
        "TieringSettled=False",
        "The store failed with another error. The broker retries.",
        "See the store's response in the message.",
    ),
    Reason.STORE_DIRECTORY_MISSING: ReasonEntry(
        "TieringSettled=False", "The directory of the store does not exist.", "Mount it."
    ),
    Reason.STORE_DIRECTORY_UNSTABLE: ReasonEntry(
        "TieringSettled=False",
        "Files disappear from the directory while they are written.",
        "Stop the program that removes files there.",
    ),
}

BROKER: ReasonTable = {
    Reason.SERVING: ReasonEntry(
        "Ready=True", "The broker is registered and serves clients.", _NOTHING
    ),
    Reason.REGISTERED: ReasonEntry(
        "Registered=True", "The broker is registered and not fenced.", _NOTHING
    ),
    Reason.NEVER_REGISTERED: ReasonEntry(
        "Ready=False, Reconciling=True; Registered=False",
        "No broker with this node id has registered yet.",
        "Start a broker with that node.id and this cluster's id.",
    ),
    Reason.FENCED: ReasonEntry(
        "Ready=False, Reconciling=True; Registered=False",
        "The operator receives no heartbeat, or the broker has not caught up after its start.",
        "Start the broker, or look at its log. If it never returns, delete its Broker.",
    ),
    Reason.SHUT_DOWN: ReasonEntry(
        "Ready=False, Reconciling=True; Registered=False",
        "The broker has shut down, or is shutting down.",
        "Start it again.",
    ),
    Reason.BROKER_UNREACHABLE: ReasonEntry(
        "Ready=False, Reconciling=True",
        "No broker has reached the operator since it took over. The operator does not fence "
        "brokers for that reason, and they keep serving.",
        "Check that the broker runs and reaches the operator's control address.",
    ),
    Reason.LOG_DIRECTORY_FAILED: ReasonEntry(
        "Ready=False, Stalled=True",
        "The log directory has failed or is full.",
        "Free space, or repair it. The broker detects the recovery.",
    ),
    Reason.REPLICAS_FAILED: ReasonEntry(
        "Ready=True",
        "The broker serves, but the files of single replicas have failed, and these replicas are "
        "not in sync.",
        "Repair the files in the message, or delete the topic. The broker detects the recovery.",
    ),
    Reason.REMOTE_STORAGE_UNAVAILABLE: ReasonEntry(
        "Ready=True",
        "The broker serves, but its remote tier is unavailable.",
        "See the reasons for the tier.",
    ),
    Reason.NODE_ID_TAKEN: ReasonEntry(
        "Ready=False, Stalled=True", "Another Broker has this node id.", "Delete one of the two."
    ),
    Reason.UP_TO_DATE: ReasonEntry(
        "PodUpToDate=True", "The broker's pod matches the manifest.", _NOTHING
    ),
    Reason.RESTART_PENDING: ReasonEntry(
        "PodUpToDate=False, Reconciling=True",
        "The pod must be replaced, but a restart is not safe yet. One broker restarts at a time, "
        "while all others are live and all its partitions are fully in sync.",
        "Wait. Check the brokers and partitions in the message.",
    ),
    Reason.POD_STARTING: ReasonEntry(
        "PodUpToDate=False, Reconciling=True",
        "The broker's pod is being created or replaced, or is not ready.",
        "Wait. If it persists and the message names no cause, use kubectl describe and kubectl "
        "logs for the pod.",
    ),
    Reason.POD_MISSING: ReasonEntry(
        "PodUpToDate=False, Stalled=True",
        "The pod cannot be created, because the operator's address for brokers is unknown.",
        "Start the operator with --controller-addresses, as the chart does.",
    ),
    Reason.POD_REFUSED: ReasonEntry(
        "PodUpToDate=False, Stalled=True",
        "The API server rejects the StatefulSet, the Service or the ConfigMap of the broker. "
        "Causes are an invalid field of spec.pod, a name conflict or a missing permission.",
        "Follow the message.",
    ),
    Reason.VOLUME_REFUSED: ReasonEntry(
        "PodUpToDate=False, Stalled=True",
        "The API server rejects a change of the volume claim, for example because its "
        "StorageClass does not allow expansion.",
        "Follow the message, or restore size and class of the claim.",
    ),
    Reason.ADVERTISED: ReasonEntry(
        "ExternalAddress=True",
        "External clients receive the addresses in status.externalEndpoints.",
        _NOTHING,
    ),
    Reason.ADDRESS_PENDING: ReasonEntry(
        "ExternalAddress=False, Reconciling=True",
        "The external address of the broker is not known yet, so external clients see the broker "
        "as unavailable. A load balancer has no address, or the pod must be replaced.",
        "Wait. If it persists, use kubectl describe for the Service and ask the administrator of "
        "the Kubernetes cluster for a load balancer. Alternatively, set external.host.",
    ),
    Reason.ADDRESS_REFUSED: ReasonEntry(
        "ExternalAddress=False, Stalled=True",
        "The API server rejects the Service of an external listener, or the operator may not "
        "read Nodes. Causes are a nodePort or a name in use, or a missing permission.",
        "Follow the message.",
    ),
    Reason.MOVING_REPLICAS: ReasonEntry(
        "Draining=True, Reconciling=True",
        "The replicas of a drained or deleted broker move to other brokers. The number of "
        "parallel moves is limited.",
        "Wait. To change the limits, see tidemark.catch.up.replicas and related keys on the "
        "Cluster.",
    ),
    Reason.REPLICAS_CANNOT_MOVE: ReasonEntry(
        "Draining=True, Reconciling=True",
        "The remaining replicas of the broker cannot move. The message names them and the cause.",
        "Follow the message.",
    ),
    Reason.DRAINED: ReasonEntry(
        "Draining=False", "The broker has no replicas left.", "Stop or delete it."
    ),
    Reason.REPLICAS_IN_USE: ReasonEntry(
        "Draining=True, Reconciling=True",
        "The Broker is being deleted, but has the last live copy of partitions, or one that "
        "min.insync.replicas requires.",
        "Start another broker, or start the other replicas and let them catch up, or delete the "
        "topics. If the log directory is lost for good, set tidemark.dev/accept-lost-directory.",
    ),
}

CLUSTER: ReasonTable = {
    Reason.SERVING: ReasonEntry("Ready=True", "At least one broker is live.", _NOTHING),
    Reason.ADVERTISED: ReasonEntry(
        "ExternalAddress=True",
        "status.externalListeners has the bootstrap servers for external clients, and every "
        "broker is advertised to them.",
        _NOTHING,
    ),
    Reason.ADDRESS_PENDING: ReasonEntry(
        "ExternalAddress=False, Reconciling=True",
        "A Service of an external listener has no address yet.",
        "Wait. If it persists, check the Service in the message and ask the administrator of the "
        "Kubernetes cluster for a load balancer.",
    ),
    Reason.ADDRESS_REFUSED: ReasonEntry(
        "ExternalAddress=False, Stalled=True",
        "The API server rejects a Service of an external listener, or the operator may not read "
        "Nodes.",
        "Follow the message. Internal clients are served.",
    ),
    Reason.DELETING: ReasonEntry(
        "Ready=False, Reconciling=True",
        "The Cluster is being deleted. It waits for its Topics and Brokers, then the "
        "PartitionSlices and the Cluster are deleted.",
        "Delete the Topics and Brokers in the message. See their conditions if one of them is "
        "not deleted.",
    ),
    Reason.CREATION_REFUSED: ReasonEntry(
        "ObjectsAccepted=False",
        "An admission policy, a quota or a role prevents the operator from creating objects or "
        "the Topics of Kafka clients. The message has the API server's reason. The condition "
        "clears ten minutes after the last rejection.",
        "Set the labels and annotations that the policy requires in spec.objectMetadata of the "
        "Cluster, or allow the objects.",
    ),
    Reason.NO_BROKERS: ReasonEntry(
        "Ready=False, Reconciling=True",
        "No broker is live.",
        "Start a broker. Its node id needs a Broker object.",
    ),
    Reason.BROKERS_UNREACHABLE: ReasonEntry(
        "Ready=False, Reconciling=True",
        "No broker has reached the operator since it took over. The operator does not fence "
        "brokers for that reason, and they keep serving.",
        "Check that brokers run and reach the operator's control address.",
    ),
    Reason.BROKERS_REFUSED: ReasonEntry(
        "Ready=False or True, Stalled=True",
        "The API server rejects a Broker of spec.brokers, their Service or their "
        "PodDisruptionBudget. Causes are admission, a name conflict or an external change.",
        "Follow the message. All other work continues.",
    ),
    Reason.AVAILABLE: ReasonEntry(
        "RemoteStorageReady=True", "The remote tier is available.", _NOTHING
    ),
    Reason.REMOTE_STORAGE_UNAVAILABLE: ReasonEntry(
        "RemoteStorageReady=False",
        "The remote storage cannot be used.",
        "Follow the message. Causes are credentials, the address, the store's id, or topics that "
        "still need the storage.",
    ),
    Reason.SWEPT: ReasonEntry(
        "TierSwept=True", "The latest sweep of the tier left no unreferenced objects.", _NOTHING
    ),
    Reason.ORPHANS_LEFT: ReasonEntry(
        "TierSwept=False",
        "The latest sweep of the tier did not remove some unreferenced objects. They are too "
        "young or in a directory without a manifest, or a read failed.",
        "Wait for young objects (tidemark.remote.sweep.delay.ms), or remove them with tidemark "
        "sweep --delete. To list the others, use tidemark sweep.",
    ),
    Reason.SECOND_CLUSTER: ReasonEntry(
        "Ready=False, Stalled=True",
        "The operator of this namespace manages another Cluster.",
        "Delete one of the two. Each Cluster needs its own namespace.",
    ),
    Reason.EPOCHS_RUNNING_OUT: ReasonEntry(
        "Ready=True, Stalled=True",
        "Fewer than 16 million controller epochs are left. Nothing fails yet.",
        "Find the cause of the many takeovers, and move the topics to another Cluster in time.",
    ),
    Reason.EPOCHS_EXHAUSTED: ReasonEntry(
        "Ready=False, Stalled=True",
        "The last controller epoch is in use, so no operator can take over any more.",
        "Create another Cluster and move the topics there.",
    ),
    Reason.CERTIFICATES_UNUSABLE: ReasonEntry(
        "Ready=False, Stalled=True",
        "A certificate authority of the Cluster or of its clients is unusable, missing, or belongs "
        "to another cluster. The operator creates no replacement, because it would not be trusted. "
        "Alternatively, the operator cannot write its own certificate to its temporary directory.",
        "Restore the Secret (for a local cluster, the directory) in the message. If the message "
        "names the temporary directory, free space there.",
    ),
    Reason.REBUILDING: ReasonEntry(
        "Ready=False, Reconciling=True",
        "PartitionSlices were lost or are outdated, as status.rebuilding says, and topics are "
        "rebuilt from broker reports.",
        "Start the brokers in the message, or delete their Brokers. See the condition Ready of "
        "the Topics.",
    ),
    Reason.SLICES_MISSING: ReasonEntry(
        "Ready=False, Stalled=True",
        "A PartitionSlice was deleted while in use. The operator creates it again and rebuilds "
        "its content. An adopting Cluster cannot do this, because it does not know the number of "
        "slices.",
        "Wait. If the Cluster adopts an earlier one, restore the slice from a backup.",
    ),
    Reason.SLICES_OF_ANOTHER_CLUSTER: ReasonEntry(
        "Ready=False, Stalled=True",
        "PartitionSlices of an earlier Cluster with this name exist. Nothing is written until "
        "their owner is decided.",
        "To continue that cluster, set tidemark.dev/adopt-cluster-id to the cluster id in the "
        "message. To start a new one, delete the slices with their finalizers.",
    ),
    Reason.SLICE_UNREADABLE: ReasonEntry(
        "Ready=False, Stalled=True",
        "A row was written by a newer version, or is damaged.",
        "Upgrade the operator, or restore the slice.",
    ),
    Reason.SLICE_REFUSED: ReasonEntry(
        "Ready=False, Stalled=True",
        "The API server rejects the creation of a slice, or a write to it.",
        "See the API server's response in the message. Allow the write, or apply the definitions "
        "and roles of this version.",
    ),
    Reason.SLICES_CONTENDED: ReasonEntry(
        "Ready=False, Stalled=True",
        "Another writer keeps changing the slices.",
        "Find the writer of the PartitionSlices and stop it.",
    ),
}

RECORD_DELETION: ReasonTable = {
    Reason.PENDING: ReasonEntry(
        "Succeeded=Unknown", "No operator has reconciled the object yet.", "Start the operator."
    ),
    Reason.RESOLVING: ReasonEntry(
        "Succeeded=Unknown, Reconciling=True",
        "The operator requests offsets from the leaders. Nothing is deleted yet.",
        "Wait. If the message names an old broker, upgrade it.",
    ),
    Reason.DELETING: ReasonEntry(
        "Succeeded=Unknown, Reconciling=True",
        "The offsets are resolved, but not every low watermark has reached them.",
        "Wait. Start brokers that are down.",
    ),
    Reason.TOPIC_NOT_FOUND: ReasonEntry(
        "Succeeded=Unknown, Reconciling=True",
        "The Topic does not exist. The operator waits for spec.timeout, or 5 minutes.",
        "Create it, or correct the reference.",
    ),
    Reason.TOPIC_NOT_READY: ReasonEntry(
        "Succeeded=Unknown, Reconciling=True",
        "The Topic is not placed yet.",
        "See the condition Ready of the Topic.",
    ),
    Reason.PARTITIONS_OFFLINE: ReasonEntry(
        "Succeeded=Unknown, Reconciling=True",
        "Partitions have no leader.",
        "See the condition Ready of the Topic.",
    ),
    Reason.DELETED: ReasonEntry("Succeeded=True", "All requested records are deleted.", _NOTHING),
    Reason.ABANDONED: ReasonEntry(
        "Succeeded=False",
        "The object was deleted before it finished, so records may remain. Finalizers of other "
        "controllers still hold it.",
        "Have the owners of the finalizers in the message remove them. Create a new object.",
    ),
    Reason.DRY_RUN: ReasonEntry(
        "Succeeded", "The records were counted. Nothing was deleted.", _NOTHING
    ),
    Reason.FINISHED: ReasonEntry("Reconciling=False", "No change is in progress.", _NOTHING),
    Reason.PROGRESSING: ReasonEntry("Stalled=False", "No change is blocked.", _NOTHING),
    Reason.PARTITION_UNKNOWN: ReasonEntry(
        "Succeeded=False, Stalled=True",
        "The Topic has no such partition. Nothing was deleted.",
        "Create a new object with a correct list.",
    ),
    Reason.PARTITIONS_FAILED: ReasonEntry(
        "Succeeded=False, Stalled=True",
        "Some partitions failed (the message has the error). The others are complete.",
        "Correct the cause, then create a new object.",
    ),
    Reason.TOPIC_REPLACED: ReasonEntry(
        "Succeeded=False, Stalled=True",
        "The Topic does not have the id in spec.topicId or of the resolved offsets. Nothing more "
        "is deleted.",
        "Create a new object for the new topic.",
    ),
    Reason.TIMEOUT: ReasonEntry(
        "Succeeded=False, Stalled=True",
        "spec.timeout has passed, or 5 minutes without it while the Topic did not exist.",
        "Create a new object. Deleted records stay deleted.",
    ),
}

USER: ReasonTable = {
    Reason.PENDING: ReasonEntry(
        "Ready=Unknown", "No operator has reconciled the object yet.", "Start the operator."
    ),
    Reason.USABLE: ReasonEntry(
        "Ready=True",
        "Every connected broker has the user, and its Secret has the client's credentials.",
        _NOTHING,
    ),
    Reason.ACKNOWLEDGEMENTS_PENDING: ReasonEntry(
        "Ready=False, Reconciling=True",
        "Brokers have not acknowledged the user's current state.",
        "Look at the logs of the brokers in the message.",
    ),
    Reason.SECRET_TAKEN: ReasonEntry(
        "Ready=False, Stalled=True",
        "A Secret with the User's name exists and does not belong to the operator. It is not "
        "changed.",
        "Rename or delete that Secret, or give the User another name.",
    ),
    Reason.SECRET_REFUSED: ReasonEntry(
        "Ready=False, Stalled=True",
        "The operator's account lacks permissions for Secrets.",
        "Allow it to get, create, update and delete Secrets of the namespace.",
    ),
    Reason.PASSWORD_UNUSABLE: ReasonEntry(
        "Ready=False, Stalled=True",
        "The password in the referenced Secret is unreadable or invalid.",
        "Follow the message. The operator retries.",
    ),
    Reason.CERTIFICATES_UNUSABLE: ReasonEntry(
        "Ready=False, Stalled=True",
        "The certificate authority of the Cluster's clients is unreadable or belongs to another "
        "cluster.",
        "Restore the Secret (for a local cluster, the directory) in the message.",
    ),
    Reason.LIMIT_REACHED: ReasonEntry(
        "Ready=False, Stalled=True",
        "The Cluster has more Users or ACLs than brokers support. The oldest Users take "
        "precedence.",
        "Delete Users, or combine ACLs with a prefix.",
    ),
}

EXPORT: ReasonTable = {
    Reason.PENDING: ReasonEntry(
        "Ready=Unknown; Maintained=Unknown before the first maintenance",
        "No operator has reconciled the object yet.",
        "Start the operator.",
    ),
    Reason.MAINTAINED: ReasonEntry(
        "Maintained=True", "The last maintenance of the tables succeeded.", _NOTHING
    ),
    Reason.MAINTENANCE_FAILED: ReasonEntry(
        "Maintained=False",
        "The last maintenance of a table failed. The export continues, and the next scheduled "
        "time repeats the maintenance.",
        "See the error in the message, and the log of the job's pod.",
    ),
    Reason.RUNNING: ReasonEntry(
        "Ready=True; Exporting=True during a scheduled run", "The job is running.", _NOTHING
    ),
    Reason.SCHEDULED: ReasonEntry(
        "Ready=True, Exporting=True", "The next run starts at the time in the message.", _NOTHING
    ),
    Reason.SUSPENDED: ReasonEntry(
        "Ready=True, Exporting=False",
        "spec.suspend is true, so no job runs. Reconciling is True while a job is being stopped.",
        _NOTHING,
    ),
    Reason.UP_TO_DATE: ReasonEntry(
        "Exporting=True",
        "The table keeps up with the topic. See status.currentTime for the time up to which it "
        "is complete.",
        _NOTHING,
    ),
    Reason.CATCHING_UP: ReasonEntry(
        "Exporting=True",
        "Records are committed, but the table has not reached the end of the topic for the first "
        "time.",
        "Wait.",
    ),
    Reason.JOB_STARTING: ReasonEntry(
        "Ready=False, Reconciling=True, Exporting=Unknown",
        "The job was created, and nothing is committed yet.",
        "Wait. See the pod's state in the message.",
    ),
    Reason.JOB_FAILED: ReasonEntry(
        "Ready=False, Exporting=False; Reconciling=True, and Stalled=True after three in a row "
        "or if a retry cannot succeed",
        "The latest run failed. It is retried with a delay of up to ten minutes. Committed "
        "records stay, and no record is lost or duplicated.",
        "See the job's error in the message, and the pod's log with kubectl logs job/NAME-NUMBER "
        "(number from status.run). A change of the spec starts the next run at once.",
    ),
    Reason.LAGGING: ReasonEntry(
        "Exporting=False",
        "The job commits, but the table is more than 15 minutes or ten intervals behind.",
        "Wait if the job was down. Otherwise give it more cores (spec.job.cores) or a larger "
        "maxBytesPerTrigger.",
    ),
    Reason.NO_PROGRESS: ReasonEntry(
        "Exporting=False",
        "The topic has records that are not in the table, and there was no commit for 15 minutes "
        "or ten intervals.",
        "See the log of the job's pod. To restart the job, delete its Job.",
    ),
    Reason.TOPICS_FAILING: ReasonEntry(
        "Exporting=False",
        "Some topics of an Export of many topics are not exported. The others are.",
        "Follow status.topics.worst. The job retries each topic with a delay of up to ten minutes.",
    ),
    Reason.REPORT_MISSING: ReasonEntry(
        "Exporting=Unknown, and Exporting=False once the table may be outdated; Ready=False and "
        "Reconciling=True of a run that was never reached",
        "The job's pod is running, but the operator cannot reach its metrics page.",
        "Allow the operator's pods to connect to port 8080 of the export's pods in the "
        "NetworkPolicies of the namespace.",
    ),
    Reason.TOPIC_NOT_FOUND: ReasonEntry(
        "Ready=False, Reconciling=True, Exporting=False",
        "The Topic does not exist, or is being deleted. No job runs, and the table keeps its rows.",
        "Create the Topic, or delete the Export.",
    ),
    Reason.TOPIC_REPLACED: ReasonEntry(
        "Ready=False, Stalled=True, Exporting=False",
        "The Topic was deleted and created again, or its topic was deleted outside Tidemark. "
        "Offsets of a new topic do not match the table.",
        "Create another Export with another table.",
    ),
    Reason.TABLE_TAKEN: ReasonEntry(
        "Ready=False, Stalled=True, Exporting=False",
        "An older Export of the namespace writes to the same table.",
        "Delete one of the two.",
    ),
    Reason.TABLE_TAKEN_OVER: ReasonEntry(
        "Ready=False, Stalled=True, Exporting=False",
        "Another job has taken over the table, or the table was rolled back. The job is not "
        "restarted, because both jobs would keep taking the table from each other.",
        "Stop the other job, then set spec.suspend to true and back.",
    ),
    Reason.SCHEDULE_INVALID: ReasonEntry(
        "Ready=False, Stalled=True, Exporting=False",
        "spec.schedule never occurs, or spec.timeZone is unknown.",
        "Correct the field in the message.",
    ),
    Reason.SOURCE_UNUSABLE: ReasonEntry(
        "Ready=False, and Reconciling=True or Stalled=True; Exporting=False without a job",
        "The source of the job is missing: a broker with the listener, a User with a Secret, or "
        "a tier. A job that runs already continues with the earlier spec.",
        "Follow the message.",
    ),
    Reason.POLICY_REFUSED: ReasonEntry(
        "Ready=False, Stalled=True, Exporting=False",
        "The Export names an image, a setting, an address or a volume that its Cluster does not "
        "allow. A running job is stopped.",
        "Remove what the message names, or have the Cluster's owner allow it in "
        "Cluster.spec.exports.",
    ),
    Reason.SECRET_NOT_OFFERED: ReasonEntry(
        "Ready=False, Stalled=True, Exporting=False",
        "A Secret that the job needs does not exist, or its owner does not offer it. A running "
        "job is stopped when an offer is withdrawn.",
        "Follow the message. The Secret's owner sets the annotation tidemark.dev/offered-to.",
    ),
    Reason.IMAGE_MISSING: ReasonEntry(
        "Ready=False, Stalled=True, Exporting=False",
        "Neither the Export nor the operator's settings name an image for the job.",
        "Set spec.job.image, or exports.image of the chart.",
    ),
    Reason.JOB_REFUSED: ReasonEntry(
        "Ready=False, Stalled=True, Exporting=False",
        "The API server rejects the Job because of a quota, an admission policy or a missing "
        "permission. For a local cluster, a Secret does not exist.",
        "Follow the message.",
    ),
}

#: Objects that are being deleted in spite of a protection.
PROTECTED: ReasonTable = {
    Reason.DELETION_PROTECTED: ReasonEntry(
        "Stalled=True",
        "The object is being deleted although tidemark.dev/deletion-protection is set. Nothing "
        "is deleted, and the object stays in service.",
        "To delete the object, remove the annotation. To keep a topic's data, first set "
        "deletionPolicy: Orphan, and later adopt it with a new Topic "
        "(tidemark.dev/adopt-topic-id).",
    ),
    Reason.DEFINITION_DELETED: ReasonEntry(
        "Stalled=True, of the Cluster",
        "A CustomResourceDefinition of tidemark.dev is being deleted with all objects of its "
        "kind. The operator deletes nothing, and topics, users and brokers stay unchanged.",
        "Install the definitions again, then the objects from their manifests "
        "(deletion-protection.md, Recover from a deleted definition).",
    ),
}

#: Topics, Brokers and Users.
ELSEWHERE: ReasonTable = {
    Reason.CLUSTER_NOT_FOUND: ReasonEntry(
        "Ready=False, Reconciling=True",
        "The Cluster in spec.clusterRef does not exist.",
        "Create it.",
    ),
    Reason.CLUSTER_NOT_CONTROLLED: ReasonEntry(
        "Ready=False, Stalled=True",
        "The operator of this namespace manages another Cluster.",
        "Create the object again with another clusterRef, which is immutable, or in the "
        "namespace of that Cluster's operator.",
    ),
}

#: Every kind, after repeated failures.
FAILING: ReasonTable = {
    Reason.CONTENDED: ReasonEntry(
        "Stalled=True",
        "Another writer keeps changing the object between the operator's read and write.",
        "Find the writer in metadata.managedFields, and stop it.",
    ),
    Reason.ACCESS_DENIED: ReasonEntry(
        "Stalled=True; Ready=False on a Cluster that no operator can take over for it",
        "The operator's account lacks the permission in the message.",
        "Apply the roles of this version.",
    ),
    Reason.WRITE_REFUSED: ReasonEntry(
        "Stalled=True",
        "The API server rejects a write of the operator because of an admission policy, or "
        "resource definitions of another version.",
        "Apply the definitions of this version (crds/), or correct the policy in the message.",
    ),
    Reason.OBJECT_UNREADABLE: ReasonEntry(
        "Stalled=True",
        "This version of the operator cannot read the object, so its earlier state stays in "
        "force. If only a field of a Topic is unknown, the rest of the Topic applies.",
        "Correct what the message names, or upgrade the operator.",
    ),
    Reason.DECISION_NOT_STORED: ReasonEntry(
        "Stalled=True",
        "A decision could not be written to the PartitionSlices. The operator retries.",
        "Follow the message. Check the API server.",
    ),
    Reason.INTERNAL_ERROR: ReasonEntry(
        "Stalled=True",
        "The operator has an internal error. Other objects are reconciled normally.",
        "Report it with the operator's log. A restart may help.",
    ),
}

#: Topics with ``Cluster.spec.engine.kafka``.
KAFKA: ReasonTable = {
    Reason.KAFKA_UNAVAILABLE: ReasonEntry(
        "Ready=False, Reconciling=True",
        "Apache Kafka is unavailable, so changes wait. A Topic that was Ready stays Ready.",
        "See the Cluster's conditions.",
    ),
    Reason.KAFKA_BUSY: ReasonEntry(
        "Ready=False, Reconciling=True; Reconciling=True",
        "Apache Kafka did not perform the request, but a retry may succeed.",
        "Wait. The message has Kafka's error.",
    ),
    Reason.KAFKA_REJECTED: ReasonEntry(
        "Ready=False, Stalled=True; Stalled=True",
        "Apache Kafka rejects the request. The message has its error.",
        "Follow the message.",
    ),
    Reason.CONFIG_REFUSED: ReasonEntry(
        "Ready=False, Stalled=True; Stalled=True",
        "Apache Kafka rejects the configuration or a value. No part of the change is in force.",
        "Correct spec.config as in the message.",
    ),
    Reason.POLICY_VIOLATION: ReasonEntry(
        "Ready=False, Stalled=True; Stalled=True",
        "A policy of the Kafka cluster (create.topic.policy, alter.config.policy) rejects the "
        "change.",
        "Change the manifest, or the policy.",
    ),
    Reason.NAME_REFUSED: ReasonEntry(
        "Ready=False, Stalled=True",
        "Apache Kafka does not accept the topic name.",
        "Delete the Topic, and create it with another topicName.",
    ),
    Reason.CREATING: ReasonEntry(
        "Ready=False, Reconciling=True", "Apache Kafka is creating the topic.", "Wait."
    ),
    Reason.TOPIC_MISSING: ReasonEntry(
        "Ready=False, Stalled=True",
        "The topic was deleted outside Tidemark. The operator does not create an empty one in "
        "its place.",
        "To create a new topic, delete the Topic and apply it again.",
    ),
    Reason.TOPIC_REPLACED: ReasonEntry(
        "Ready=False, Stalled=True",
        "The topic was deleted outside Tidemark, and another one has its name.",
        "Delete the Topic with deletionPolicy Orphan, and apply it again with "
        "tidemark.dev/adopt-topic-id.",
    ),
    Reason.PARTITIONS_ADDED: ReasonEntry(
        "Stalled=True",
        "Partitions were added to the topic outside Tidemark.",
        "Set spec.partitions to the number in the message.",
    ),
    Reason.CLIENT_CHANGES_NOT_REFUSED: ReasonEntry(
        "Stalled=True",
        "spec.clientChanges is Refuse. Clients change topics at Apache Kafka's brokers, so the "
        "operator cannot refuse them.",
        "Restrict clients by ACLs of that cluster, and remove spec.clientChanges.",
    ),
    Reason.TIERING_FIELD_NOT_SUPPORTED: ReasonEntry(
        "Stalled=True",
        "spec.tiering.maxLag or spec.tiering.paused is set. Apache Kafka copies a segment once it "
        "is closed.",
        "Remove the field, and set segment.ms in spec.config to close segments earlier.",
    ),
    Reason.TIERING_ENABLED_EXTERNALLY: ReasonEntry(
        "Stalled=True",
        "Tiering of the topic was enabled outside Tidemark.",
        "Set spec.tiering.enabled.",
    ),
    Reason.REASSIGNMENT_IN_PROGRESS: ReasonEntry(
        "Reconciling=True",
        "A reassignment that was started outside Tidemark is in progress. The operator starts "
        "none.",
        "Wait, or have its owner cancel it.",
    ),
}

ENGINE: ReasonTable = {
    Reason.ENGINE_UNAVAILABLE: ReasonEntry(
        "Ready=False, Reconciling=True",
        "Apache Kafka is unavailable. Its topics do not depend on the operator.",
        "Check that its brokers run and that the operator can reach them.",
    ),
    Reason.ENGINE_REJECTED: ReasonEntry(
        "Ready=False, Stalled=True",
        "The operator cannot use Apache Kafka with this manifest. Causes are a certificate, a "
        "password, a missing Secret, an old version, or another cluster than before.",
        "Follow the message. The operator retries every few seconds.",
    ),
}

OF_OWN_BROKERS: ReasonTable = {
    Reason.ENGINE_KAFKA: ReasonEntry(
        "Ready=False, Stalled=True",
        "The Cluster's engine is Apache Kafka, which manages its own brokers and users.",
        "Delete the object.",
    ),
}

RELEASED: ReasonTable = {
    Reason.DELETED: ReasonEntry(
        "Ready=False",
        "The operator has finished the deletion. With deletionPolicy Orphan, the topic is no "
        "longer managed. Finalizers of other controllers still hold the object.",
        "Have the owners of the finalizers in the message remove them.",
    ),
}

TABLE = {
    "Topic": TOPIC,
    "Topic, as the leaders report of the tier": TIER,
    "Broker": BROKER,
    "Cluster": CLUSTER,
    "RecordDeletion": RECORD_DELETION,
    "User": USER,
    "Export": EXPORT,
    "Topic, Broker and Cluster": PROTECTED,
    "Topic, Broker and User": ELSEWHERE,
    "Topic, with engine kafka": KAFKA,
    "Cluster, with engine kafka": ENGINE,
    "Broker and User, with engine kafka": OF_OWN_BROKERS,
    "Topic, Broker, Cluster, User and Export": RELEASED,
    "Every kind": FAILING,
}
