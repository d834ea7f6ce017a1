"""What a broker shows of the tier; Kafka's names where Kafka has the figure (KIP-405, KIP-963,
KIP-1018).

Sums over all partitions that the broker leads.
"""

from tidemark.metrics.metric import counter, gauge, rows

_TOPICS = "kafka_server_brokertopicmetrics_"
_MANAGER = "kafka_log_remote_remotelogmanager_"
_READER = "org_apache_kafka_storage_internals_log_remotestoragethreadpool_"
_OWN = "tidemark_broker_remote_"

FETCH_BYTES = counter(f"{_TOPICS}remotefetchbytes", "Bytes read from the tier for consumers.")
FETCH_REQUESTS = counter(f"{_TOPICS}remotefetchrequests", "Reads from the tier for consumers.")
FETCH_ERRORS = counter(f"{_TOPICS}remotefetcherrors", "Reads from the tier that failed.")
INTEGRITY_ERRORS = counter(
    f"{_OWN}integrity_errors",
    "Reads that met an object of the tier which is not what was copied.",
)
COPY_BYTES = counter(f"{_TOPICS}remotecopybytes", "Bytes of segments copied to the tier.")
COPY_REQUESTS = counter(f"{_TOPICS}remotecopyrequests", "Segments whose copy was begun.")
COPY_ERRORS = counter(f"{_TOPICS}remotecopyerrors", "Copies that failed.")
COPY_THROTTLED = counter(
    f"{_OWN}copy_throttled_seconds", "Seconds that copies have waited for their quota."
)
FETCH_THROTTLED = counter(
    f"{_OWN}fetch_throttled_seconds", "Seconds that reads of the tier have waited for their quota."
)
DELETE_REQUESTS = counter(
    f"{_TOPICS}remotedeleterequests", "Segments whose objects were to be deleted."
)
DELETE_ERRORS = counter(f"{_TOPICS}remotedeleteerrors", "Deletions that failed.")
SWEPT_OBJECTS = counter(
    f"{_OWN}swept_objects", "Objects and unfinished uploads that nothing named, removed."
)
SWEPT_BYTES = counter(f"{_OWN}swept_bytes", "Bytes of objects that nothing named, removed.")
AUX_REQUESTS = counter(
    f"{_TOPICS}buildremotelogauxstaterequests", "Replicas that were to start from the tier."
)
AUX_ERRORS = counter(
    f"{_TOPICS}buildremotelogauxstateerrors", "Replicas that could not start from the tier."
)

COPY_LAG_BYTES = gauge(
    f"{_TOPICS}remotecopylagbytes",
    "Bytes of closed segments of led partitions that are not in the tier.",
)
COPY_LAG_SEGMENTS = gauge(
    f"{_TOPICS}remotecopylagsegments",
    "Closed segments of led partitions that are not in the tier.",
)
DELETE_LAG_BYTES = gauge(
    f"{_TOPICS}remotedeletelagbytes", "Bytes in the tier that are marked and not deleted yet."
)
DELETE_LAG_SEGMENTS = gauge(
    f"{_TOPICS}remotedeletelagsegments",
    "Segments in the tier that are marked and not deleted yet.",
)
SIZE_BYTES = gauge(
    f"{_TOPICS}remotelogsizebytes", "Bytes of live segments in the tier, of led partitions."
)
METADATA_COUNT = gauge(
    f"{_TOPICS}remotelogmetadatacount", "Live segments in the tier, of led partitions."
)
MANAGER_IDLE = gauge(
    f"{_MANAGER}remotelogmanagertasksavgidlepercent",
    "Idle share of the expiration pool since the start, 0 to 1.",
)
COPIER_IDLE = gauge(
    f"{_MANAGER}remotelogmanagercopiertasksavgidlepercent",
    "Idle share of the copier pool since the start, 0 to 1.",
)
READER_QUEUE = gauge(
    f"{_READER}remotelogreadertaskqueuesize", "Reads from the tier that wait for a thread."
)
READER_IDLE = gauge(
    f"{_READER}remotelogreaderavgidlepercent",
    "Idle share of the fetcher pool since the start, 0 to 1.",
)
CACHE_BYTES = gauge(f"{_OWN}cache_bytes", "Bytes of remote data and indexes held in memory.")
ORPHANS = gauge(
    f"{_OWN}orphans",
    "Objects that nothing names and that are left, where the last sweep of all was this broker's.",
)
ORPHAN_BYTES = gauge(f"{_OWN}orphan_bytes", "Bytes of these.")
UNFINISHED_UPLOADS = gauge(
    f"{_OWN}unfinished_uploads",
    "Uploads that nothing names and that are left, by the same sweep.",
)
UNKNOWN_OBJECTS = gauge(
    f"{_OWN}unknown_objects", "Objects in folders of no known topic, at this broker's last sweep."
)
PARTITION_ERRORS = gauge(f"{_OWN}partitions_in_error", "Led partitions whose tier has an error.")
STORE_AVAILABLE = gauge(
    f"{_OWN}store_available", "1 while the remote storage answers and is the right one."
)

ALL = rows(globals())
