"""Metrics of a broker about the tier, with Kafka's names where Kafka has the figure (KIP-405,
KIP-963, KIP-1018).

They are sums over all partitions that the broker leads. Reads count on the broker that serves
them, which may be a follower.
"""

from tidemark.metrics.metric import counter, gauge, rows

_TOPICS = "kafka_server_brokertopicmetrics_"
_MANAGER = "kafka_log_remote_remotelogmanager_"
_READER = "org_apache_kafka_storage_internals_log_remotestoragethreadpool_"
_OWN = "tidemark_broker_remote_"

FETCH_BYTES = counter(f"{_TOPICS}remotefetchbytes", "Bytes read from the tier for consumers.")
FETCH_REQUESTS = counter(f"{_TOPICS}remotefetchrequests", "Reads from the tier for consumers.")
FETCH_ERRORS = counter(f"{_TOPICS}remotefetcherrors", "Failed reads from the tier.")
FETCH_REDIRECTS = counter(
    f"{_OWN}fetch_redirects",
    "Consumers sent to another replica for records that only the tier has.",
)
INTEGRITY_ERRORS = counter(
    f"{_OWN}integrity_errors",
    "Reads that found a damaged object in the tier.",
)
STORE_READS = counter(
    f"{_OWN}store_reads",
    "Requests to the store for data and indexes of segments, for reads and in advance.",
)
STORE_READ_BYTES = counter(
    f"{_OWN}store_read_bytes", "Bytes of segments that were read from the store."
)
READ_AHEAD_BYTES = counter(
    f"{_OWN}read_ahead_bytes",
    "Bytes of segments that were loaded into memory before a client requested them.",
)
READ_AHEAD_UNUSED_BYTES = counter(
    f"{_OWN}read_ahead_unused_bytes",
    "Bytes that were loaded or kept for a sequential reader, and evicted before it read them.",
)
COPY_BYTES = counter(f"{_TOPICS}remotecopybytes", "Bytes of segments copied to the tier.")
COPY_REQUESTS = counter(f"{_TOPICS}remotecopyrequests", "Segment copies that were started.")
COPY_ERRORS = counter(f"{_TOPICS}remotecopyerrors", "Failed segment copies.")
MERGED_SEGMENTS = counter(
    f"{_OWN}merged_segments", "Small segments of the tier that were replaced by a merged one."
)
MERGED_BYTES = counter(
    f"{_OWN}merged_bytes", "Bytes of segments that were read and written again by merges."
)
MERGE_ERRORS = counter(f"{_OWN}merge_errors", "Failed merges of segments.")
COPY_THROTTLED = counter(
    f"{_OWN}copy_throttled_seconds", "Seconds that copies have waited for their quota."
)
FETCH_THROTTLED = counter(
    f"{_OWN}fetch_throttled_seconds",
    "Seconds that reads from the tier have waited for their quota.",
)
DELETE_REQUESTS = counter(
    f"{_TOPICS}remotedeleterequests", "Segments whose objects the broker tried to delete."
)
DELETE_ERRORS = counter(f"{_TOPICS}remotedeleteerrors", "Failed deletions.")
SWEPT_OBJECTS = counter(
    f"{_OWN}swept_objects", "Unreferenced objects and incomplete uploads that were removed."
)
SWEPT_BYTES = counter(f"{_OWN}swept_bytes", "Bytes of unreferenced objects that were removed.")
AUX_REQUESTS = counter(
    f"{_TOPICS}buildremotelogauxstaterequests", "Replicas that tried to start from the tier."
)
AUX_ERRORS = counter(
    f"{_TOPICS}buildremotelogauxstateerrors", "Replicas that failed to start from the tier."
)
CHUNK_FILE_HITS = counter(
    f"{_OWN}chunk_cache_disk_hits", "Chunks and indexes that were read from the cache on disk."
)
CHUNK_FILE_MISSES = counter(
    f"{_OWN}chunk_cache_disk_misses",
    "Chunks and indexes that the cache on disk did not have.",
)
CHUNK_FILE_EVICTIONS = counter(
    f"{_OWN}chunk_cache_disk_evictions", "Files that the cache on disk has evicted."
)
CHUNK_FILE_ERRORS = counter(
    f"{_OWN}chunk_cache_disk_errors",
    "Failures of the cache on disk: damaged or lost files, and a directory that cannot be used.",
)

KMS_REQUESTS = counter(
    f"{_OWN}kms_requests", "Requests to AWS KMS for the decryption of encryption keys."
)
KMS_ERRORS = counter(
    f"{_OWN}kms_errors", "Requests to AWS KMS that failed, or that it has refused."
)

COPY_LAG_BYTES = gauge(
    f"{_TOPICS}remotecopylagbytes",
    "Bytes of closed segments of led partitions that are not in the tier yet.",
)
COPY_LAG_SEGMENTS = gauge(
    f"{_TOPICS}remotecopylagsegments",
    "Closed segments of led partitions that are not in the tier yet.",
)
COPY_LAG_SECONDS = gauge(
    f"{_OWN}copy_lag_seconds",
    "Seconds since the append of the oldest committed record of a led partition that is not in the "
    "tier, in the active segment too. 0 if all are in the tier.",
)
WAITING_BYTES = gauge(
    f"{_OWN}waiting_bytes",
    "Bytes of segments of led partitions with committed records that are not in the tier, active "
    "segments included.",
)
DELETE_LAG_BYTES = gauge(
    f"{_TOPICS}remotedeletelagbytes", "Bytes in the tier that are marked for deletion."
)
DELETE_LAG_SEGMENTS = gauge(
    f"{_TOPICS}remotedeletelagsegments",
    "Segments in the tier that are marked for deletion.",
)
SIZE_BYTES = gauge(
    f"{_TOPICS}remotelogsizebytes", "Bytes of live segments of led partitions in the tier."
)
METADATA_COUNT = gauge(
    f"{_TOPICS}remotelogmetadatacount", "Live segments of led partitions in the tier."
)
MANAGER_IDLE = gauge(
    f"{_MANAGER}remotelogmanagertasksavgidlepercent",
    "Idle ratio of the expiration pool since the start, 0 to 1.",
)
COPIER_IDLE = gauge(
    f"{_MANAGER}remotelogmanagercopiertasksavgidlepercent",
    "Idle ratio of the copier pool since the start, 0 to 1.",
)
READER_QUEUE = gauge(
    f"{_READER}remotelogreadertaskqueuesize", "Reads from the tier that wait for a thread."
)
READER_IDLE = gauge(
    f"{_READER}remotelogreaderavgidlepercent",
    "Idle ratio of the fetcher pool since the start, 0 to 1.",
)
CACHE_BYTES = gauge(f"{_OWN}cache_bytes", "Bytes of remote data and indexes in memory.")
CHUNK_FILE_BYTES = gauge(f"{_OWN}chunk_cache_disk_bytes", "Bytes of the cache on disk.")
CHUNK_FILE_COUNT = gauge(f"{_OWN}chunk_cache_disk_files", "Files of the cache on disk.")
ORPHANS = gauge(
    f"{_OWN}orphans",
    "Unreferenced objects that are left, if this broker did the cluster's last sweep.",
)
ORPHAN_BYTES = gauge(f"{_OWN}orphan_bytes", "Bytes of orphaned objects.")
UNFINISHED_UPLOADS = gauge(
    f"{_OWN}unfinished_uploads",
    "Unreferenced uploads that are left, after the same sweep.",
)
UNKNOWN_OBJECTS = gauge(
    f"{_OWN}unknown_objects",
    "Objects in directories of unknown topics, at this broker's last sweep.",
)
PARTITION_ERRORS = gauge(f"{_OWN}partitions_in_error", "Led partitions with a tier error.")
STORE_AVAILABLE = gauge(
    f"{_OWN}store_available", "1 while the remote storage is available and has the expected id."
)

ALL = rows(globals())
