"""The annotations by which a person lets Tidemark go on where it may not decide by itself, and the
one by which nothing is deleted.

Each value names what is accepted, exactly: what does not match what is there is refused with a
message, so that an annotation that was left standing never accepts another loss later.
"""

#: On a Topic: the id under which its name is known and whose place it takes.
ADOPT_TOPIC_ID = "tidemark.dev/adopt-topic-id"
#: On a Topic: whose copy of a partition is to lead, and up to which offset it reaches.
ACCEPT_COPY = "tidemark.dev/accept-copy"
#: On a Topic: without whose reports its partitions are rebuilt, and in which rebuilding.
REBUILD_WITHOUT = "tidemark.dev/rebuild-without"
#: On a Topic, by ``tidemark restore``: from where in the tier its partitions begin.
RESTORE_FROM_TIER = "tidemark.dev/restore-from-tier"
#: On a Broker that is being deleted: the log directory, and the registration, that are given up.
ACCEPT_LOST_DIRECTORY = "tidemark.dev/accept-lost-directory"
#: On a Cluster: ids of topics that are to be left out of ``status.leftBehind``.
FORGET_LEFT_BEHIND = "tidemark.dev/forget-left-behind"
#: On a Cluster that was made again: the id of the cluster whose PartitionSlices it takes over.
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
