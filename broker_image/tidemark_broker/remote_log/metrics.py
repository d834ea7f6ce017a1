"""Figures of the tier, named as Kafka's are, in one table.

Counters are sums over all partitions: a label per partition would grow without limit.
"""

from collections.abc import Callable, Iterator, Mapping
from threading import Lock

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_TOPICS = "kafka_server_brokertopicmetrics_"
_MANAGER = "kafka_log_remote_remotelogmanager_"
_READER = "org_apache_kafka_storage_internals_log_remotestoragethreadpool_"

FETCH_BYTES = _TOPICS + "remotefetchbytes"
FETCH_REQUESTS = _TOPICS + "remotefetchrequests"
FETCH_ERRORS = _TOPICS + "remotefetcherrors"
COPY_BYTES = _TOPICS + "remotecopybytes"
COPY_REQUESTS = _TOPICS + "remotecopyrequests"
COPY_ERRORS = _TOPICS + "remotecopyerrors"
DELETE_REQUESTS = _TOPICS + "remotedeleterequests"
DELETE_ERRORS = _TOPICS + "remotedeleteerrors"
AUX_REQUESTS = _TOPICS + "buildremotelogauxstaterequests"
AUX_ERRORS = _TOPICS + "buildremotelogauxstateerrors"

COPY_LAG_BYTES = _TOPICS + "remotecopylagbytes"
COPY_LAG_SEGMENTS = _TOPICS + "remotecopylagsegments"
DELETE_LAG_BYTES = _TOPICS + "remotedeletelagbytes"
DELETE_LAG_SEGMENTS = _TOPICS + "remotedeletelagsegments"
SIZE_BYTES = _TOPICS + "remotelogsizebytes"
METADATA_COUNT = _TOPICS + "remotelogmetadatacount"
MANAGER_IDLE = _MANAGER + "remotelogmanagertasksavgidlepercent"
COPIER_IDLE = _MANAGER + "remotelogmanagercopiertasksavgidlepercent"
READER_QUEUE = _READER + "remotelogreadertaskqueuesize"
READER_IDLE = _READER + "remotelogreaderavgidlepercent"
COPY_THROTTLED = "tidemark_broker_remote_copy_throttled_seconds"
FETCH_THROTTLED = "tidemark_broker_remote_fetch_throttled_seconds"
CACHE_BYTES = "tidemark_broker_remote_cache_bytes"
INTEGRITY_ERRORS = "tidemark_broker_remote_integrity_errors"
PARTITION_ERRORS = "tidemark_broker_remote_partitions_in_error"
SWEPT_OBJECTS = "tidemark_broker_remote_swept_objects"
SWEPT_BYTES = "tidemark_broker_remote_swept_bytes"
ORPHANS = "tidemark_broker_remote_orphans"
ORPHAN_BYTES = "tidemark_broker_remote_orphan_bytes"
UNFINISHED_UPLOADS = "tidemark_broker_remote_unfinished_uploads"
UNKNOWN_OBJECTS = "tidemark_broker_remote_unknown_objects"
STORE_AVAILABLE = "tidemark_broker_remote_store_available"

COUNTERS: Mapping[str, str] = {
    FETCH_BYTES: "Bytes read from the tier for consumers.",
    FETCH_REQUESTS: "Reads from the tier for consumers.",
    FETCH_ERRORS: "Reads from the tier that failed.",
    INTEGRITY_ERRORS: "Reads that met an object of the tier which is not what was copied.",
    COPY_BYTES: "Bytes of segments copied to the tier.",
    COPY_REQUESTS: "Segments whose copy was begun.",
    COPY_ERRORS: "Copies that failed.",
    COPY_THROTTLED: "Seconds that copies have waited for their quota.",
    FETCH_THROTTLED: "Seconds that reads of the tier have waited for their quota.",
    DELETE_REQUESTS: "Segments whose objects were to be deleted.",
    DELETE_ERRORS: "Deletions that failed.",
    SWEPT_OBJECTS: "Objects and unfinished uploads that nothing named and that were removed.",
    SWEPT_BYTES: "Bytes of objects that nothing named and that were removed.",
    AUX_REQUESTS: "Replicas that were to start from the tier.",
    AUX_ERRORS: "Replicas that could not start from the tier.",
}

GAUGES: Mapping[str, str] = {
    COPY_LAG_BYTES: "Bytes of closed segments of led partitions that are not in the tier.",
    COPY_LAG_SEGMENTS: "Closed segments of led partitions that are not in the tier.",
    DELETE_LAG_BYTES: "Bytes in the tier that are marked and not deleted yet.",
    DELETE_LAG_SEGMENTS: "Segments in the tier that are marked and not deleted yet.",
    SIZE_BYTES: "Bytes of live segments in the tier, of led partitions.",
    METADATA_COUNT: "Live segments in the tier, of led partitions.",
    MANAGER_IDLE: "Idle share of the expiration pool since the start, 0 to 1.",
    COPIER_IDLE: "Idle share of the copier pool since the start, 0 to 1.",
    READER_QUEUE: "Reads from the tier that wait for a thread.",
    READER_IDLE: "Idle share of the fetcher pool since the start, 0 to 1.",
    CACHE_BYTES: "Bytes of remote data and indexes held in memory.",
    ORPHANS: "Objects that nothing names and that are left, as this broker's last sweep saw it.",
    ORPHAN_BYTES: "Bytes of these.",
    UNFINISHED_UPLOADS: "Uploads that nothing names and that are left, by the same sweep.",
    UNKNOWN_OBJECTS: "Objects in folders of no known topic, at this broker's last sweep.",
    PARTITION_ERRORS: "Led partitions whose tier has an error.",
    STORE_AVAILABLE: "1 while the remote storage answers and is the right one.",
}


class RemoteMetrics:
    """Counters; safe between threads."""

    def __init__(self) -> None:
        self._values = dict.fromkeys(COUNTERS, 0.0)
        self._lock = Lock()

    def add(self, name: str, amount: float = 1) -> None:
        """Count one of :data:`COUNTERS`."""
        with self._lock:
            self._values[name] += amount

    def values(self) -> dict[str, float]:
        """All counters now."""
        with self._lock:
            return dict(self._values)


class RemoteCollector(Collector):
    """``gauges`` is asked for the values of :data:`GAUGES`; it only reads."""

    def __init__(self, metrics: RemoteMetrics, gauges: Callable[[], Mapping[str, float]]) -> None:
        self._metrics = metrics
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        """All families of both tables."""
        for name, count in self._metrics.values().items():
            yield CounterMetricFamily(name, COUNTERS[name], value=count)
        for name, value in self._gauges().items():
            yield GaugeMetricFamily(name, GAUGES[name], value=value)
