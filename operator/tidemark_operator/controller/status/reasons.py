"""Every reason that a condition may have, what it means and what helps:
docs/reference/conditions.md.

A message says what is the matter with *this* object; here stands what is true whenever the reason
is met. ``tests/unit/repository/test_pages.py`` holds the table to the reasons that the sources
give.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Reason:
    """One row: under which conditions it stands (``Ready=False``), its meaning, the way out."""

    name: str
    conditions: str
    meaning: str
    action: str


_NOTHING = "Nothing to do."

TOPIC = (
    Reason(
        "Pending",
        "Ready=Unknown",
        "No operator has looked at the object yet.",
        "Start the operator.",
    ),
    Reason(
        "Serving",
        "Ready=True",
        "Every partition has a leader that knows that it leads: producers can write.",
        _NOTHING,
    ),
    Reason(
        "Settled",
        "Reconciling=False, Stalled=False",
        "Nothing is under way.",
        _NOTHING,
    ),
    Reason("Progressing", "Stalled=False", "Nothing is stuck.", _NOTHING),
    Reason("Stalled", "Reconciling=False", "Nothing goes on by itself.", "See Stalled."),
    Reason(
        "Paused",
        "Reconciling=False, Stalled=False; Ready=Unknown on a new Topic; Succeeded=Unknown",
        "The annotation tidemark.dev/paused is true: the configuration in force is held, and a "
        "RecordDeletion deletes nothing more.",
        "Remove the annotation.",
    ),
    Reason(
        "BrokersMissing",
        "Ready=False, Reconciling=True",
        "Fewer brokers are live than the replication factor asks for, so nothing (or none of the "
        "added partitions) was created.",
        "Start brokers, or set enable.under.replicated.topic.creation on the Cluster (KIP-409).",
    ),
    Reason("Placing", "Ready=False, Reconciling=True", "Partitions are being placed.", "Wait."),
    Reason(
        "LeadersStarting",
        "Ready=False, Reconciling=True",
        "Leaders were elected, or partitions created, and not all of their brokers have "
        "acknowledged it: nobody can write there yet.",
        "Wait; look at the logs of the brokers that the message names.",
    ),
    Reason(
        "PartitionsOffline",
        "Ready=False, Reconciling=True",
        "No live broker has all that is committed, so nobody leads.",
        "Start one of the brokers that the message names, or delete the Broker of one that never "
        "comes back.",
    ),
    Reason(
        "ElectionWaits",
        "Ready=False, Reconciling=True",
        "All live replicas came back from a crash and may have lost a tail; too few have said how "
        "far their logs reach (KIP-966).",
        "Start the other brokers that the message names, or accept the copy that it names by "
        "tidemark.dev/accept-copy.",
    ),
    Reason(
        "LastCopyMissing",
        "Ready=False, Stalled=True",
        "No complete copy of a partition is left: the directory of the last one is another now.",
        "Bring back the log directory of a broker that had one, or accept what another has, and "
        "the loss of the rest, by tidemark.dev/accept-copy with the value that the message names.",
    ),
    Reason(
        "StorageFailed",
        "Ready=False, Reconciling=True; FullyReplicated=False",
        "The disk of a leader refuses, and no other live replica has all records; in "
        "FullyReplicated also the disk of another replica.",
        "Repair that log directory; the Broker's Ready says what is wrong with it.",
    ),
    Reason(
        "Deleting",
        "Ready=False",
        "The Topic is being deleted: replicas go, then what lies in the tier.",
        "Wait; where Stalled is True, do what the message says.",
    ),
    Reason(
        "NameTaken",
        "Ready=False, Stalled=True",
        "Another Topic has this topic name.",
        "Delete this Topic, and create it with another topicName if you need both.",
    ),
    Reason(
        "AdoptionRequired",
        "Ready=False, Stalled=True",
        "The topic name exists under an id that no Topic has.",
        "Annotate the Topic with tidemark.dev/adopt-topic-id and the id that the message names, or "
        "delete the Topic and create it with another topicName.",
    ),
    Reason(
        "AdoptionRefused",
        "Stalled=True; Ready=False where nothing was placed yet",
        "tidemark.dev/adopt-topic-id, or tidemark.dev/restore-from-tier, names what this Topic "
        "cannot take over.",
        "Correct the annotation (the message lists the ids that can be adopted), or remove it.",
    ),
    Reason(
        "PartitionsBeyondSpec",
        "Stalled=True",
        "Brokers have more partitions of this topic than spec.partitions, for example after a "
        "restored backup of etcd. All of them are served.",
        "Set spec.partitions to the number that the message names, or more.",
    ),
    Reason(
        "Adopting",
        "Ready=False, Reconciling=True",
        "The Topic has taken over the id of a topic that was there; its partitions follow.",
        "Wait.",
    ),
    Reason(
        "Rebuilding",
        "Ready=False, Reconciling=True",
        "PartitionSlices are lost, or older than what brokers were told. The partitions are "
        "rebuilt from what brokers report; nothing is elected, made anew or deleted before.",
        "Start the brokers that the message names, or give up what only they have by "
        "tidemark.dev/rebuild-without with the value that it names.",
    ),
    Reason(
        "SliceFull",
        "Ready=False, Stalled=True",
        "A PartitionSlice has reached the size that the API server takes.",
        "Use fewer partitions, or another Cluster.",
    ),
    Reason(
        "ReplicationFactorWaits",
        "Stalled=True",
        "The manifest asks for another number of replicas than there are, and brokers or leaders "
        "are missing for it. The topic goes on with those it has.",
        "Start brokers, or set the number back.",
    ),
    Reason(
        "ReplicationFactorChanging",
        "FullyReplicated=False",
        "Replicas come, or go, until there are as many as the manifest says.",
        "Wait.",
    ),
    Reason(
        "StorageUnavailable",
        "Ready=False, Stalled=True",
        "Tiering cannot begin: there is no remote storage, or it does not answer.",
        "Give the Cluster a remoteStorage that answers and set remote.log.storage.system.enable.",
    ),
    Reason(
        "LocalRetentionTooLong",
        "Stalled=True; Ready=False where nothing was placed yet",
        "Local retention is longer than the retention that a default of the Cluster gives. A topic "
        "that is served goes on, and expires by the total.",
        "Shorten localRetention, or set retention.ms or retention.bytes on the Topic.",
    ),
    Reason(
        "Compacted",
        "Stalled=True; Ready=False where nothing was placed yet",
        "The Topic is to be tiered, and log.cleanup.policy of the Cluster would have it compacted. "
        "A topic with data in the tier is not compacted; another one is not tiered.",
        "Set cleanup.policy to delete in spec.config, or leave tiering off.",
    ),
    Reason("AllInSync", "FullyReplicated=True", "All replicas are in sync.", _NOTHING),
    Reason(
        "Placeholders",
        "FullyReplicated=False",
        "Replicas wait for a broker that they could be placed on (KIP-409).",
        "Start more brokers: a broker that joins fills them.",
    ),
    Reason(
        "ReplicasBehind",
        "FullyReplicated=False",
        "Replicas are catching up, or their brokers are down; the message names both.",
        "Start the brokers that are down, or delete the Broker of one that never returns. Wait for "
        "those that are catching up.",
    ),
    Reason(
        "MinInsyncReplicasTooHigh",
        "ConfigEffective=False",
        "spec.config has a min.insync.replicas above spec.replicationFactor, which is in force.",
        "Lower min.insync.replicas, or raise spec.replicationFactor.",
    ),
    Reason("Enabled", "TieringSettled=True", "Closed segments are copied.", _NOTHING),
    Reason(
        "Disabling",
        "Ready=True, Reconciling=True; TieringSettled=False",
        "Tiering is being turned off: each broker that hosts a replica has to acknowledge.",
        "Wait; start the brokers that the message names, or delete their Broker.",
    ),
    Reason(
        "NoProgress",
        "Stalled=True",
        "A disablement has not moved for ten minutes.",
        "Start the brokers that the message names, delete their Broker, or delete the Topic.",
    ),
    Reason(
        "Disabled",
        "TieringSettled=True",
        "Tiering is off. With Retain, what is left in the tier is read until its retention ends, "
        "and local data does not expire before that.",
        "Plan as much disk as the message says.",
    ),
    Reason(
        "ObjectDamaged",
        "TierIntegrity=False",
        "An object of the tier is not what was copied, and its range is refused. Or a partition's "
        "head is older than one seen before, and nothing of that partition is copied, deleted or "
        "swept.",
        "Bring the object back (the message has its key), or give the records up.",
    ),
    Reason(
        "AuditPassed",
        "RemoteIntegrity=True",
        "The last audit of the tier has found nothing wrong with the topic.",
        _NOTHING,
    ),
    Reason(
        "DamageFound",
        "RemoteIntegrity=False",
        "The last audit of the tier has found objects of the topic that are gone, or are not what "
        "was copied. It stays until another audit has looked.",
        "Bring the objects back (the message has the worst; the audit lists all), or give their "
        "records up; then run tidemark spark audit again.",
    ),
    Reason(
        "ManifestContradicts",
        "RemoteIntegrity=False",
        "The last audit of the tier has found manifests that contradict themselves, or cannot be "
        "read: offsets that no segment answers for, or two; epochs that go back.",
        "Bring the partition's head and pages back from the bucket's versions, or report it; then "
        "run tidemark spark audit again.",
    ),
    Reason(
        "NotAudited",
        "RemoteIntegrity=Unknown",
        "No audit has looked at this topic in the tier, or its record cannot be read.",
        "Run tidemark spark audit now and then, if that is wanted.",
    ),
    Reason(
        "AuditOutdated",
        "RemoteIntegrity=Unknown",
        "The last audit found nothing, more than 45 days ago.",
        "Run tidemark spark audit again.",
    ),
)

#: What a leader reports of its tier: the reason of TieringSettled, and of Ready where it was
#: elected and may not lead before the tier has answered.
TIER = (
    Reason(
        "TakingOverFromTier",
        "Ready=False, Reconciling=True",
        "A leader was elected that may lack what is in the tier, and asks the tier first.",
        "Wait.",
    ),
    Reason(
        "TierUnavailable",
        "Ready=False, Reconciling=True",
        "A leader was elected that has to ask the tier, and the tier does not answer.",
        "Repair the remote storage; the message says what it answers.",
    ),
    Reason(
        "StorageError",
        "Ready=False; TieringSettled=False",
        "The leader's disk refuses.",
        "See the Broker's Ready.",
    ),
    Reason(
        "TierIntegrity",
        "TieringSettled=False",
        "An object of the tier is not what was written last. See the condition TierIntegrity.",
        "Bring the object back, or give the records up.",
    ),
    Reason(
        "CustomMetadataTooLarge",
        "TieringSettled=False",
        "The storage returned more custom metadata than the limit (KIP-917): copying has stopped.",
        "Raise remote.log.metadata.custom.metadata.max.bytes, then restart the broker or move the "
        "leader.",
    ),
    Reason(
        "LocalDataMissing",
        "TieringSettled=False",
        "The local log does not hold what follows the tier's end: a copy would leave a hole.",
        "Let a replica lead that holds it, or delete the records up to there.",
    ),
    Reason(
        "LogDiverged",
        "TieringSettled=False",
        "The leader's log contradicts what is in the tier; it takes over from there.",
        "Wait.",
    ),
    Reason(
        "ManifestNotFound",
        "TieringSettled=False",
        "The head of a partition that has one is not in the store.",
        "Check endpoint, bucket and prefix; bring the object back.",
    ),
    Reason(
        "ManifestPageNotFound",
        "TieringSettled=False",
        "A page that the head names is not in the store.",
        "Bring the object back.",
    ),
    Reason(
        "ManifestCorrupt",
        "TieringSettled=False",
        "A head or page is damaged, or of a newer version. Nothing is copied or deleted meanwhile.",
        "Upgrade the brokers, or bring the object back.",
    ),
    Reason(
        "ManifestRefused",
        "TieringSettled=False",
        "The manifest's rules do not allow the change.",
        "The message says what to do instead.",
    ),
    Reason(
        "ManifestContended",
        "TieringSettled=False",
        "Other writers keep changing the head; it is tried again.",
        "Look for another cluster that uses the same bucket and prefix.",
    ),
    Reason(
        "RemoteObjectMissing",
        "TieringSettled=False",
        "An object that the manifest names is not in the store.",
        "Bring the object back, or give the records up; see whether something else deletes there.",
    ),
    Reason(
        "Fenced",
        "TieringSettled=False",
        "A newer leader or tiered epoch has claimed the head; this one has stopped.",
        "Wait.",
    ),
    Reason(
        "TopicDeleted", "TieringSettled=False", "The head is a deleted topic's tombstone.", "Wait."
    ),
    Reason(
        "RemoteLogError",
        "TieringSettled=False",
        "Something that no other reason covers; it is tried again.",
        "Report it, with the message and the broker's log.",
    ),
    Reason(
        "RemoteStorageNotConfigured",
        "TieringSettled=False",
        "The Cluster has no remote storage.",
        "Set remoteStorage in the Cluster.",
    ),
    Reason(
        "RemoteStorageNotVerified",
        "TieringSettled=False",
        "The identity of the store is being read.",
        "Wait.",
    ),
    Reason(
        "InvalidRemoteStorage",
        "TieringSettled=False",
        "The broker cannot use the accepted storage configuration.",
        "Correct remoteStorage in the Cluster.",
    ),
    Reason(
        "WrongStore",
        "TieringSettled=False",
        "The store answers, but is not the one that this cluster's tier lies in. Nothing is "
        "copied, expired or taken for empty.",
        "Correct endpoint, bucket, prefix or mount.",
    ),
    Reason(
        "BucketMissing",
        "TieringSettled=False",
        "The bucket does not exist.",
        "Create it, or correct the name.",
    ),
    Reason(
        "BucketNotConfigured",
        "TieringSettled=False",
        "A segment lies in a bucket that the configuration does not name any more.",
        "Add that bucket to the remote storage's buckets again.",
    ),
    Reason(
        "ForeignCustomMetadata",
        "TieringSettled=False",
        "The custom metadata of a segment is not this storage manager's.",
        "Use the storage manager that wrote it.",
    ),
    Reason(
        "StoreAccessDenied",
        "TieringSettled=False",
        "The store refuses the credentials, or what they may do.",
        "Correct the keys in the Secret that credentialsSecretRef of the Cluster's remoteStorage "
        "names, or allow them to read, write, delete and list.",
    ),
    Reason("StoreFull", "TieringSettled=False", "The store is full.", "Make room."),
    Reason(
        "StorePermissionDenied",
        "TieringSettled=False",
        "The broker may not write to the directory that is the store.",
        "Give the broker's user write permission on it.",
    ),
    Reason(
        "StoreNotAFile",
        "TieringSettled=False",
        "Where an object should be in the directory that is the store there is a link, or no file.",
        "Remove what the message names; nothing is read or written there.",
    ),
    Reason(
        "StoreInputOutputError",
        "TieringSettled=False",
        "The file system of the directory that is the store fails.",
        "Look at that file system.",
    ),
    Reason(
        "RemoteStorageUnavailable",
        "TieringSettled=False",
        "The store cannot be used just now.",
        "The message says why.",
    ),
    Reason(
        "StoreNotS3",
        "TieringSettled=False",
        "What answers at the endpoint is not an S3.",
        "Correct the endpoint.",
    ),
    Reason(
        "StoreUnreachable",
        "TieringSettled=False",
        "The endpoint does not answer.",
        "Check that it runs, its address and the network.",
    ),
    Reason(
        "StoreWithoutETags",
        "TieringSettled=False",
        "The store gives objects no ETag, so nothing can be written conditionally.",
        "Use a store that does.",
    ),
    Reason(
        "StoreWithoutConditionalWrites",
        "TieringSettled=False",
        "The store ignores If-Match or If-None-Match, so brokers would overwrite each other's "
        "commits. Nothing is copied, expired or deleted.",
        "Use a store with conditional writes, or a version or setting of it that has them.",
    ),
    Reason(
        "StoreNotImplemented",
        "TieringSettled=False",
        "The store does not implement a request that Tidemark needs.",
        "Use another store, or another version of it.",
    ),
    Reason(
        "StoreRefusesDeletes",
        "TieringSettled=False",
        "The store refuses to delete some objects. All others are deleted.",
        "Remove the policy, lock or legal hold that holds the objects. The message names one.",
    ),
    Reason(
        "StoreError",
        "TieringSettled=False",
        "The store failed in another way; it is tried again.",
        "The message has its answer.",
    ),
    Reason(
        "StoreDirectoryMissing",
        "TieringSettled=False",
        "The directory that is the store is not there.",
        "Mount it.",
    ),
    Reason(
        "StoreDirectoryUnstable",
        "TieringSettled=False",
        "Files vanish from the directory while they are written.",
        "Stop the program that cleans it.",
    ),
)

BROKER = (
    Reason("Serving", "Ready=True", "Registered and serving.", _NOTHING),
    Reason(
        "Registered", "Registered=True", "The broker has registered, and is not fenced.", _NOTHING
    ),
    Reason(
        "NeverRegistered",
        "Ready=False, Reconciling=True; Registered=False",
        "No broker of this node id has registered yet.",
        "Start one with that node.id and this cluster's id.",
    ),
    Reason(
        "Fenced",
        "Ready=False, Reconciling=True; Registered=False",
        "The operator receives no heartbeat, or the broker has not caught up after its start.",
        "Start the broker, or look at its log. Delete the Broker of one that never returns.",
    ),
    Reason(
        "ShutDown",
        "Ready=False, Reconciling=True; Registered=False",
        "The broker has shut down, or is about to.",
        "Start it again.",
    ),
    Reason(
        "NotReached",
        "Ready=False, Reconciling=True",
        "No broker has reached the operator since it took over. None is fenced for that: brokers "
        "go on without a controller.",
        "See whether the broker runs, and reaches the operator's control address.",
    ),
    Reason(
        "LogDirectoryFailed",
        "Ready=False, Stalled=True",
        "The log directory as a whole refuses (full, or failing).",
        "Make room, or repair it; the broker notices by itself.",
    ),
    Reason(
        "ReplicasFailed",
        "Ready=True",
        "The broker serves; the files of single replicas refuse, and those are out.",
        "Repair the files that the message names, or delete the topic; the broker notices by "
        "itself.",
    ),
    Reason(
        "RemoteStorageUnavailable",
        "Ready=True",
        "The broker serves, but the remote tier does not answer it.",
        "See the reasons of the tier.",
    ),
    Reason(
        "NodeIdTaken",
        "Ready=False, Stalled=True",
        "Another Broker has this node id.",
        "Delete one of the two.",
    ),
    Reason("UpToDate", "PodUpToDate=True", "The broker's pod is as the manifest says.", _NOTHING),
    Reason(
        "RestartWaits",
        "PodUpToDate=False, Reconciling=True",
        "The pod is to be another one, and the broker may not be restarted yet: one broker is at a "
        "time, while all others are there and each of its partitions is fully in sync.",
        "Wait; see to the brokers and partitions that the message names.",
    ),
    Reason(
        "PodStarting",
        "PodUpToDate=False, Reconciling=True",
        "The broker's pod is being made or replaced, or is not ready.",
        "Wait; if it goes on, and the message does not say why, kubectl describe and kubectl logs "
        "of that pod do.",
    ),
    Reason(
        "PodMissing",
        "PodUpToDate=False, Stalled=True",
        "There can be no pod: the operator was not told under which addresses brokers reach it.",
        "Start the operator with --controller-addresses, as the chart does.",
    ),
    Reason(
        "PodRefused",
        "PodUpToDate=False, Stalled=True",
        "The API server does not take the StatefulSet, the Service or the ConfigMap of the broker: "
        "a field of spec.pod is wrong, another object has the name (or that of its volume's "
        "claim), or the account may not write it.",
        "Do what the message says.",
    ),
    Reason(
        "VolumeRefused",
        "PodUpToDate=False, Stalled=True",
        "The API server does not take the volume's claim as the manifest wants it: its storage "
        "class lets no volume grow, say.",
        "Do what the message says, or set size and class back to what the claim has.",
    ),
    Reason(
        "Advertised",
        "ExternalAddress=True",
        "Clients outside are told the addresses in status.externalEndpoints.",
        _NOTHING,
    ),
    Reason(
        "AddressPending",
        "ExternalAddress=False, Reconciling=True",
        "Where clients outside reach the broker is not known yet, so they are told of it as of one "
        "that is not there: a load balancer has no address, or the pod is yet to be replaced.",
        "Wait; if it goes on, kubectl describe that Service: a load balancer has to be given by "
        "whoever runs the Kubernetes cluster. Or set external.host.",
    ),
    Reason(
        "AddressRefused",
        "ExternalAddress=False, Stalled=True",
        "The API server does not take the Service of an external listener: a nodePort is taken, "
        "another object has the name, or the account may not write it; or Nodes may not be read.",
        "Do what the message says.",
    ),
    Reason(
        "MovingReplicas",
        "Draining=True, Reconciling=True",
        "The replicas of a broker that is drained or deleted move to others, as many at a time as "
        "may catch up together.",
        "Wait; tidemark.catch.up.replicas and its kin on the Cluster say how many.",
    ),
    Reason(
        "ReplicasCannotMove",
        "Draining=True, Reconciling=True",
        "The replicas that a broker still has cannot move: the message says which, and why.",
        "Do what the message says.",
    ),
    Reason("Drained", "Draining=False", "A broker has no replica any more.", "Stop or delete it."),
    Reason(
        "ReplicasInUse",
        "Draining=True, Reconciling=True",
        "The Broker is being deleted and has the last live copy of partitions, or one of so few "
        "that min.insync.replicas needs it.",
        "Start another broker, or the other replicas and let them catch up, delete the topics, or "
        "give up a directory that never comes back by tidemark.dev/accept-lost-directory.",
    ),
)

CLUSTER = (
    Reason("Serving", "Ready=True", "At least one broker is live.", _NOTHING),
    Reason(
        "Advertised",
        "ExternalAddress=True",
        "status.externalListeners has where clients outside begin, and each broker is advertised "
        "to them.",
        _NOTHING,
    ),
    Reason(
        "AddressPending",
        "ExternalAddress=False, Reconciling=True",
        "The Services of an external listener, to any or to single brokers, lead from nowhere yet.",
        "Wait; if it goes on, see what the message names: a load balancer has to be given by "
        "whoever runs the Kubernetes cluster.",
    ),
    Reason(
        "AddressRefused",
        "ExternalAddress=False, Stalled=True",
        "The API server does not take a Service of an external listener, or Nodes may not be read.",
        "Do what the message says; clients inside are served.",
    ),
    Reason(
        "Deleting",
        "Ready=False, Reconciling=True",
        "The Cluster is being deleted: it waits for its Topics and Brokers, which need it to go in "
        "order; then the PartitionSlices go, and the Cluster last.",
        "Delete the Topics and Brokers that the message names; their conditions say what holds "
        "them.",
    ),
    Reason(
        "CreationRefused",
        "ObjectsAccepted=False",
        "An admission policy, a quota or a role does not let the operator create objects, or the "
        "Topics that Kafka clients request. The message has the API server's reason. A refusal "
        "that is not repeated is forgotten after ten minutes.",
        "Set the labels and annotations that the policy requires in spec.objectMetadata of the "
        "Cluster, or allow the objects.",
    ),
    Reason(
        "NoBrokers",
        "Ready=False, Reconciling=True",
        "No broker is live.",
        "Start one; its node id needs a Broker object.",
    ),
    Reason(
        "NoBrokerReached",
        "Ready=False, Reconciling=True",
        "No broker has reached the operator since it took over. None is fenced for that: brokers "
        "go on without a controller.",
        "See whether brokers run, and reach the operator's control address.",
    ),
    Reason(
        "BrokersRefused",
        "Ready=False or True, Stalled=True",
        "The API server does not take a Broker of spec.brokers, their Service or their budget: "
        "admission refuses it, another object has the name, or somebody has changed it.",
        "Do what the message says; everything else goes on.",
    ),
    Reason("Answering", "RemoteStorageReady=True", "The remote tier answers.", _NOTHING),
    Reason(
        "RemoteStorageUnavailable",
        "RemoteStorageReady=False",
        "The remote storage cannot be used.",
        "The message says why: credentials, address, identity or topics that still need it.",
    ),
    Reason(
        "Swept",
        "TierSwept=True",
        "The last sweep of the tier has left nothing that nothing names.",
        _NOTHING,
    ),
    Reason(
        "OrphansLeft",
        "TierSwept=False",
        "The last sweep of the tier has found what nothing names and did not remove it: it was too "
        "young, lies in a folder without a manifest, or something could not be read.",
        "Wait for what is young (tidemark.remote.sweep.delay.ms), or remove it with tidemark sweep "
        "--delete; look at the rest, which tidemark sweep lists.",
    ),
    Reason(
        "SecondCluster",
        "Ready=False, Stalled=True",
        "The operator of this namespace looks after another Cluster.",
        "Delete one of the two: each Cluster has a namespace of its own.",
    ),
    Reason(
        "EpochsRunningOut",
        "Ready=True, Stalled=True",
        "Fewer than 16 million controller epochs are left; nothing fails yet.",
        "Find out who raises them, and move the topics to another Cluster in time.",
    ),
    Reason(
        "EpochsExhausted",
        "Ready=False, Stalled=True",
        "The last controller epoch is used: nobody can take over any more.",
        "Make another Cluster and move the topics there.",
    ),
    Reason(
        "CertificatesUnusable",
        "Ready=False, Stalled=True",
        "A certificate authority of the Cluster, its own or that of its clients, cannot be used, "
        "is gone, or is another cluster's. None is ever made in its place: nobody would know it. "
        "Or the operator cannot write its own certificate to its temporary directory.",
        "Restore the Secret (locally, the folder) that the message names. If the message names the "
        "temporary directory, free space there.",
    ),
    Reason(
        "Rebuilding",
        "Ready=False, Reconciling=True",
        "PartitionSlices were lost, or are older than what brokers were told: status.rebuilding "
        "has since when, and which. Topics are rebuilt from what brokers report.",
        "Start the brokers that the message names, or delete their Brokers; see the Ready of "
        "Topics.",
    ),
    Reason(
        "SlicesMissing",
        "Ready=False, Stalled=True",
        "A PartitionSlice was removed while it was in use: it is made again, and what stood in it "
        "is rebuilt, at once; unless a Cluster that was made again is to take the slices over, "
        "since how many there were is not known then.",
        "Wait; for a Cluster that was made again restore the slice from a backup.",
    ),
    Reason(
        "SlicesOfAnotherCluster",
        "Ready=False, Stalled=True",
        "PartitionSlices of an earlier Cluster of this name are there. Nothing is written before "
        "it is clear whose they are.",
        "To go on as that cluster, give the Cluster the annotation tidemark.dev/adopt-cluster-id "
        "with the cluster id that the message names; to begin anew, remove those slices with their "
        "finalizers.",
    ),
    Reason(
        "SliceUnreadable",
        "Ready=False, Stalled=True",
        "A row was written by a newer version, or is damaged.",
        "Upgrade the operator, or restore the slice.",
    ),
    Reason(
        "SliceRefused",
        "Ready=False, Stalled=True",
        "The API server refuses to create a slice, or what is written to it.",
        "The message has its answer: allow it, or apply the definitions and roles of this version.",
    ),
    Reason(
        "SlicesContended",
        "Ready=False, Stalled=True",
        "Another writer keeps changing the slices.",
        "See whether something else writes to PartitionSlices.",
    ),
)

RECORD_DELETION = (
    Reason(
        "Pending", "Succeeded=Unknown", "No operator has looked at it yet.", "Start the operator."
    ),
    Reason(
        "Resolving",
        "Succeeded=Unknown, Reconciling=True",
        "The leaders are being asked where their partitions stand. Nothing is deleted yet.",
        "Wait; upgrade a broker of which the message says so.",
    ),
    Reason(
        "Deleting",
        "Succeeded=Unknown, Reconciling=True",
        "The numbers are frozen; the low watermarks have not reached them all.",
        "Wait; start brokers that are down.",
    ),
    Reason(
        "TopicNotFound",
        "Succeeded=Unknown, Reconciling=True",
        "There is no such Topic. It is waited for until spec.timeout is over, or 5 minutes.",
        "Create it, or correct it.",
    ),
    Reason(
        "TopicNotReady",
        "Succeeded=Unknown, Reconciling=True",
        "The Topic is not placed yet.",
        "See the Topic's condition Ready.",
    ),
    Reason(
        "PartitionsOffline",
        "Succeeded=Unknown, Reconciling=True",
        "Partitions have no leader.",
        "See the Topic's Ready.",
    ),
    Reason("Deleted", "Succeeded=True", "All that was asked is deleted.", _NOTHING),
    Reason(
        "Abandoned",
        "Succeeded=False",
        "The object was deleted before it finished, so records may remain. Finalizers of others "
        "still hold it.",
        "Have the owners of the finalizers that the message names remove them; apply a new object.",
    ),
    Reason("DryRun", "Succeeded", "What would go was counted; nothing was deleted.", _NOTHING),
    Reason("Finished", "Reconciling=False", "Nothing is under way any more.", _NOTHING),
    Reason("Progressing", "Stalled=False", "Nothing is stuck.", _NOTHING),
    Reason(
        "PartitionUnknown",
        "Succeeded=False, Stalled=True",
        "The Topic has no such partition; nothing was deleted.",
        "Correct the list, in a new object.",
    ),
    Reason(
        "PartitionsFailed",
        "Succeeded=False, Stalled=True",
        "Some partitions refused (the message says why); the others are done.",
        "Correct the cause, then apply a new object.",
    ),
    Reason(
        "TopicReplaced",
        "Succeeded=False, Stalled=True",
        "The Topic is not that of spec.topicId, or of the resolved offsets; nothing more goes.",
        "Apply a new object for the new topic.",
    ),
    Reason(
        "Timeout",
        "Succeeded=False, Stalled=True",
        "The time of spec.timeout is over, or 5 minutes without it and without the Topic.",
        "Apply a new object; what was deleted stays deleted.",
    ),
)

USER = (
    Reason("Pending", "Ready=Unknown", "No operator has looked at it yet.", "Start the operator."),
    Reason(
        "Usable",
        "Ready=True",
        "Every broker that is connected knows the user; its Secret holds what a client needs.",
        _NOTHING,
    ),
    Reason(
        "BrokersNotTold",
        "Ready=False, Reconciling=True",
        "Brokers have not acknowledged what is declared of the user.",
        "Look at the logs of the brokers that the message names.",
    ),
    Reason(
        "SecretTaken",
        "Ready=False, Stalled=True",
        "A Secret of the User's name is there that is not the operator's. It is left alone.",
        "Rename that Secret, delete it, or give the User another name.",
    ),
    Reason(
        "SecretRefused",
        "Ready=False, Stalled=True",
        "The operator's account may not do what it has to with Secrets.",
        "Allow it to get, create, update and delete Secrets of the namespace.",
    ),
    Reason(
        "PasswordUnusable",
        "Ready=False, Stalled=True",
        "The password that the User names cannot be read, or is none.",
        "Do what the message says; it is looked at again by itself.",
    ),
    Reason(
        "CertificatesUnusable",
        "Ready=False, Stalled=True",
        "The authority of the Cluster's clients cannot be read, or is another cluster's.",
        "Restore the Secret (locally, the folder) that the message names.",
    ),
    Reason(
        "LimitReached",
        "Ready=False, Stalled=True",
        "The Cluster has more Users, or ACLs, than brokers are told of. The oldest come first.",
        "Delete Users, or join ACLs by a prefix.",
    ),
)

EXPORT = (
    Reason("Pending", "Ready=Unknown", "No operator has looked at it yet.", "Start the operator."),
    Reason(
        "Running",
        "Ready=True; Exporting=True while a scheduled run is under way",
        "The job runs.",
        _NOTHING,
    ),
    Reason(
        "Scheduled",
        "Ready=True, Exporting=True",
        "No run is due before the time that the message names.",
        _NOTHING,
    ),
    Reason(
        "Suspended",
        "Ready=True, Exporting=False",
        "spec.suspend is true: no job runs. While one is being ended Reconciling is True.",
        _NOTHING,
    ),
    Reason(
        "UpToDate",
        "Exporting=True",
        "The table comes along with the topic; status.currentTime says since when it has all.",
        _NOTHING,
    ),
    Reason(
        "CatchingUp",
        "Exporting=True",
        "Records are committed, and the table has yet to come to the end of the topic, for the "
        "first time.",
        "Wait.",
    ),
    Reason(
        "JobStarting",
        "Ready=False, Reconciling=True, Exporting=Unknown",
        "The job was made and has not begun to export.",
        "Wait; see what the message says of its pod.",
    ),
    Reason(
        "JobFailed",
        "Ready=False, Exporting=False; Reconciling=True, and Stalled=True after three in a row or "
        "where trying again mends nothing",
        "The last run failed. It is begun again after a pause that grows to ten minutes; what was "
        "committed stays, and nothing is lost or doubled.",
        "The message has what the job said, the log of its pod the rest (kubectl logs "
        "job/NAME-NUMBER, with the number of status.run). A change of the spec begins the next run "
        "at once.",
    ),
    Reason(
        "Lagging",
        "Exporting=False",
        "The job commits, and what the table shows is older than a quarter of an hour, or ten "
        "intervals.",
        "Wait, where the job was away; else give it more cores (spec.job.cores) or a larger "
        "maxBytesPerTrigger.",
    ),
    Reason(
        "NoProgress",
        "Exporting=False",
        "The topic has records that the table has not, and nothing was committed for a quarter of "
        "an hour, or ten intervals.",
        "See the log of the job's pod; delete its Job to have it begun anew.",
    ),
    Reason(
        "ReportMissing",
        "Exporting=Unknown, and Exporting=False once what the table shows may be old; Ready=False "
        "and Reconciling=True of a run that was never reached",
        "The job's pod runs, and the operator does not reach its page.",
        "Let the operator's pods through to port 8080 of the export's: see the NetworkPolicies of "
        "the namespace.",
    ),
    Reason(
        "TopicNotFound",
        "Ready=False, Reconciling=True, Exporting=False",
        "The Topic is not there, or is being deleted: no job runs. The table keeps what it has.",
        "Make the Topic, or delete the Export.",
    ),
    Reason(
        "TopicReplaced",
        "Ready=False, Stalled=True, Exporting=False",
        "The Topic was deleted and made again: its offsets are not those that the table has.",
        "Make another Export, into another table.",
    ),
    Reason(
        "TableTaken",
        "Ready=False, Stalled=True, Exporting=False",
        "An older Export of the namespace writes to the same table.",
        "Delete one of the two.",
    ),
    Reason(
        "TableTakenOver",
        "Ready=False, Stalled=True, Exporting=False",
        "A job of somebody else's has taken the table over, or the table was rolled back. The job "
        "is not begun again: the two would take the table from each other without end.",
        "End the other job, then set spec.suspend to true and back.",
    ),
    Reason(
        "ScheduleInvalid",
        "Ready=False, Stalled=True, Exporting=False",
        "spec.schedule says no time, or the operator does not know spec.timeZone.",
        "Correct what the message names.",
    ),
    Reason(
        "SourceUnusable",
        "Ready=False, Exporting=False, and Reconciling=True or Stalled=True",
        "What the job would read from is not there: a broker with the listener, a User with a "
        "Secret, a tier.",
        "Do what the message says.",
    ),
    Reason(
        "PolicyRefused",
        "Ready=False, Stalled=True, Exporting=False",
        "The Export names an image, a setting, an address or a volume that its Cluster does not "
        "allow. A running job is ended.",
        "Remove what the message names, or have the Cluster's owner allow it in "
        "Cluster.spec.exports.",
    ),
    Reason(
        "SecretNotOffered",
        "Ready=False, Stalled=True, Exporting=False",
        "A Secret that the job needs does not exist, or its owner does not offer it. A running job "
        "is ended when an offer is withdrawn.",
        "Do what the message says: the Secret's owner sets the annotation tidemark.dev/offered-to.",
    ),
    Reason(
        "ImageMissing",
        "Ready=False, Stalled=True, Exporting=False",
        "Neither the Export nor the operator's settings name the image that the job runs in.",
        "Set spec.job.image, or exports.image of the chart.",
    ),
    Reason(
        "JobRefused",
        "Ready=False, Stalled=True, Exporting=False",
        "The API server refuses the Job (a quota, an admission policy, a right that the operator's "
        "account lacks), or a Secret of a local cluster is not there.",
        "Do what the message says.",
    ),
)

#: Of what is being deleted, and kept all the same.
PROTECTED = (
    Reason(
        "DeletionProtected",
        "Stalled=True",
        "The object is being deleted though tidemark.dev/deletion-protection is set. Nothing is "
        "deleted, and all goes on.",
        "Remove the annotation: then it goes. To keep a topic's data set deletionPolicy: Orphan "
        "before, and adopt it by a new Topic (tidemark.dev/adopt-topic-id).",
    ),
    Reason(
        "DefinitionDeleted",
        "Stalled=True, of the Cluster",
        "A CustomResourceDefinition of tidemark.dev is being deleted, and all objects of its kind "
        "with it. The operator deletes nothing: topics, users and brokers stay unchanged.",
        "Install the definitions again, then the objects from their manifests "
        "(deletion-protection.md, Recover from a deleted definition).",
    ),
)

#: Of Topics, Brokers and Users alike.
ELSEWHERE = (
    Reason(
        "ClusterNotFound",
        "Ready=False, Reconciling=True",
        "The Cluster that spec.clusterRef names is not there.",
        "Create it.",
    ),
    Reason(
        "ClusterNotControlled",
        "Ready=False, Stalled=True",
        "The operator of this namespace looks after another Cluster.",
        "Make the object again with another clusterRef, which is immutable, or in the namespace of "
        "an operator that looks after that Cluster.",
    ),
)

#: Of every kind: what the operator tried a few times and could not do.
FAILING = (
    Reason(
        "Contended",
        "Stalled=True",
        "Another writer keeps changing the object between the operator's reading and its writing.",
        "Find out who it is (metadata.managedFields), and stop it.",
    ),
    Reason(
        "AccessDenied",
        "Stalled=True; Ready=False on a Cluster that no operator can take over for it",
        "The API server does not let the operator's account do what the message says.",
        "Allow it: apply the roles of this version.",
    ),
    Reason(
        "WriteRefused",
        "Stalled=True",
        "The API server refuses what the operator writes: an admission policy, or resource "
        "definitions of another version.",
        "Apply the definitions of this version (crds/), or correct the policy that the message "
        "names.",
    ),
    Reason(
        "NotUnderstood",
        "Stalled=True",
        "This version of the operator cannot read the object: what was decided before holds; or "
        "it does not know a field of a Topic, and what else the Topic says holds.",
        "Correct what the message names, or upgrade the operator.",
    ),
    Reason(
        "DecisionNotStored",
        "Stalled=True",
        "What was decided could not be written to the PartitionSlices; it is tried again.",
        "Do what the message says; see whether the API server is well.",
    ),
    Reason(
        "InternalError",
        "Stalled=True",
        "A fault of the operator. Other objects are looked after as ever.",
        "Report it, with the operator's log; a restart may help.",
    ),
)

#: With ``Cluster.spec.engine.kafka``.
KAFKA = (
    Reason(
        "KafkaUnavailable",
        "Ready=False, Reconciling=True",
        "Kafka does not answer, so what is asked for here waits. A Topic that was Ready stays so.",
        "See the Cluster's conditions.",
    ),
    Reason(
        "KafkaBusy",
        "Ready=False, Reconciling=True; Reconciling=True",
        "Kafka did not do what it was asked, and may when it is asked again, as it is.",
        "Wait; the message has Kafka's own words.",
    ),
    Reason(
        "KafkaRefuses",
        "Ready=False, Stalled=True; Stalled=True",
        "Kafka refuses what it was asked; the message has its own words.",
        "Do what they say.",
    ),
    Reason(
        "ConfigRefused",
        "Ready=False, Stalled=True; Stalled=True",
        "Kafka refuses the configuration, or a value of it. Nothing of the change is in force.",
        "Correct spec.config as the message says.",
    ),
    Reason(
        "PolicyViolation",
        "Ready=False, Stalled=True; Stalled=True",
        "A policy of the Kafka cluster (create.topic.policy, alter.config.policy) refuses it.",
        "Change the manifest, or the policy.",
    ),
    Reason(
        "NameRefused",
        "Ready=False, Stalled=True",
        "Kafka takes no topic of that name.",
        "Delete the Topic, and create it with another topicName.",
    ),
    Reason(
        "Creating",
        "Ready=False, Reconciling=True",
        "Kafka is being asked to create the topic.",
        "Wait.",
    ),
    Reason(
        "TopicGone",
        "Ready=False, Stalled=True",
        "The topic was deleted in Kafka by somebody else. None is made in its place: it "
        "would be empty.",
        "Delete the Topic, and apply it again to have a new one.",
    ),
    Reason(
        "TopicReplaced",
        "Ready=False, Stalled=True",
        "The topic was deleted in Kafka by somebody else, and another one has its name.",
        "Delete the Topic with deletionPolicy Orphan, and apply it again with "
        "tidemark.dev/adopt-topic-id.",
    ),
    Reason(
        "PartitionsAdded",
        "Stalled=True",
        "Somebody else has given the topic more partitions than the manifest says.",
        "Set partitions to the number that the message names.",
    ),
    Reason(
        "TieredElsewhere",
        "Stalled=True",
        "Somebody else has begun to tier the topic.",
        "Set tiering.enabled.",
    ),
    Reason(
        "ReassignedElsewhere",
        "Reconciling=True",
        "A reassignment that was begun by somebody else is under way; none is begun from here.",
        "Wait, or have whoever began it end it.",
    ),
)

ENGINE = (
    Reason(
        "EngineUnavailable",
        "Ready=False, Reconciling=True",
        "Kafka does not answer. Its topics go on without the operator.",
        "See whether its brokers run, and are reached from where the operator is.",
    ),
    Reason(
        "EngineRefuses",
        "Ready=False, Stalled=True",
        "Kafka cannot be spoken to as the manifest says: a certificate, a password, a Secret that "
        "is missing, an older version, or another cluster than before.",
        "Do what the message says; it is tried again every few seconds.",
    ),
)

OF_OWN_BROKERS = (
    Reason(
        "EngineKafka",
        "Ready=False, Stalled=True",
        "The Cluster's engine is an Apache Kafka, which looks after its brokers and users itself.",
        "Delete the object.",
    ),
)

OF_OWN_TIER = (
    Reason(
        "EngineKafka",
        "Ready=False, Stalled=True",
        "The Cluster's engine is an Apache Kafka, whose topics `tidemark spark export` exports.",
        "Delete the object.",
    ),
)

RELEASED = (
    Reason(
        "Deleted",
        "Ready=False",
        "The operator has finished the deletion: nothing is left of what the object described, or, "
        "with deletionPolicy Orphan, the topic is no longer managed. Finalizers of others still "
        "hold the object.",
        "Have the owners of the finalizers that the message names remove them.",
    ),
)

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
    "Export, with engine kafka": OF_OWN_TIER,
    "Topic, Broker, Cluster, User and Export": RELEASED,
    "Every kind": FAILING,
}
