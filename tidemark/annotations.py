"""Annotations by which a person permits what Tidemark may not decide by itself, and the one that
protects from deletion.

Each value names exactly what is accepted. A value that does not match the present state is refused
with a message, so that a forgotten annotation never accepts a later loss.
"""

#: On a Topic: the id under which its name is known and whose data it adopts.
ADOPT_TOPIC_ID = "tidemark.dev/adopt-topic-id"
#: On a Topic: the broker whose copy of a partition is to lead, and the end of that copy.
ACCEPT_COPY = "tidemark.dev/accept-copy"
#: On a Topic: the brokers whose reports are not waited for, and the rebuild that it applies to.
REBUILD_WITHOUT = "tidemark.dev/rebuild-without"
#: On a Topic, by ``tidemark restore``: the offsets at which its partitions start in the tier.
RESTORE_FROM_TIER = "tidemark.dev/restore-from-tier"
#: On a Broker that is being deleted: the log directory, and the registration, that are given up.
ACCEPT_LOST_DIRECTORY = "tidemark.dev/accept-lost-directory"
#: On a Cluster: ids of topics that are no longer listed in ``status.leftBehind``.
FORGET_LEFT_BEHIND = "tidemark.dev/forget-left-behind"
#: On a re-created Cluster: the id of the cluster whose PartitionSlices it takes over.
ADOPT_CLUSTER_ID = "tidemark.dev/adopt-cluster-id"

#: ``"true"``: the object is not deleted before the annotation is removed (``policies/``; without
#: these the operator is the last line).
DELETION_PROTECTION = "tidemark.dev/deletion-protection"

#: Of a Topic, that the controller reads.
OF_TOPIC = (ADOPT_TOPIC_ID, ACCEPT_COPY, REBUILD_WITHOUT, RESTORE_FROM_TIER)
#: Of a Broker.
OF_BROKER = (ACCEPT_LOST_DIRECTORY,)
#: Of a Cluster.
OF_CLUSTER = (FORGET_LEFT_BEHIND,)
