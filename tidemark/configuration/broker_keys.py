"""The keys of the Cluster's configuration and of the broker's file that are not defaults of topics.

Names, types and defaults are Kafka's (4.3) where Kafka has the key; ``kafka_default`` tells where
our default is another. Keys under ``tidemark.``, ``metrics.`` and ``controller.addresses`` are our
own.
"""

from tidemark.configuration.key import ConfigKey, Scope
from tidemark.configuration.values import (
    BOOLEAN,
    INT64_MAX,
    RATIO,
    TEXT,
    ValueType,
    integer,
    long,
    one_of,
)

_CLUSTER = frozenset({Scope.CLUSTER})
_BOTH = frozenset({Scope.CLUSTER, Scope.BROKER})
_BROKER = frozenset({Scope.BROKER})
_MIB = 1024 * 1024
_GIB = 1024 * _MIB

UNDER_REPLICATED_CREATION = "enable.under.replicated.topic.creation"
TIERING_SYSTEM = "remote.log.storage.system.enable"
DISABLE_POLICY = "remote.log.disable.policy"
CUSTOM_METADATA_MAX_BYTES = "remote.log.metadata.custom.metadata.max.bytes"
REMOTE_DELETE_DELAY_MS = "remote.delete.delay.ms"
MERGE_MAX_BYTES = "tidemark.remote.merge.max.bytes"
CHUNK_CACHE_PATH = "tidemark.remote.chunk.cache.disk.path"
SWEEP = "tidemark.remote.sweep.enable"
SWEEP_DELAY_MS = "tidemark.remote.sweep.delay.ms"
REPLICA_SELECTOR = "replica.selector.class"
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
REMOTE_READERS = "tidemark.remote.fetch.replicas"
READERS_LISTENERS = "tidemark.readers.listeners"
#: Values of that key.
REMOTE_READERS_LEADER, REMOTE_READERS_RACK, REMOTE_READERS_ANY = "leader", "rack", "any"
AUTO_CREATE_TOPICS = "auto.create.topics.enable"
NUM_PARTITIONS = "num.partitions"
DEFAULT_REPLICATION_FACTOR = "default.replication.factor"
DELETE_TOPICS = "delete.topic.enable"
CATCH_UP_REPLICAS = "tidemark.catch.up.replicas"
CATCH_UP_REPLICAS_PER_BROKER = "tidemark.catch.up.replicas.per.broker"
CATCH_UP_BYTES_PER_BROKER = "tidemark.catch.up.bytes.per.broker"


def _key(
    scopes: frozenset[Scope],
    name: str,
    type: ValueType,
    default: object,
    meaning: str,
    kafka_default: object = None,
) -> ConfigKey:
    """Return a configuration key; its default is given as a plain value.

    ``scopes``: objects that can set the key. ``meaning``: description for the documentation.
    ``kafka_default``: Apache Kafka's default if it is another one. None: no default.
    """
    # Defaults are text, as in a broker's configuration file.
    return ConfigKey(
        name=name,
        type=type,
        default=None if default is None else str(default),
        meaning=meaning,
        scopes=scopes,
        kafka_default=None if kafka_default is None else str(kafka_default),
    )


_MIGRATION = ("bidirectional", "upgrade", "downgrade", "disabled")
_CLIENT_AUTH = one_of({value: value for value in ("none", "requested", "required")})
_REMOTE_READERS = one_of(
    {value: value for value in (REMOTE_READERS_LEADER, REMOTE_READERS_RACK, REMOTE_READERS_ANY)}
)

# fmt: off
CLUSTER_KEYS = (
    _key(_CLUSTER, UNDER_REPLICATED_CREATION, BOOLEAN, "false",
        "Create a topic even if fewer brokers than replicas are registered. Missing replicas "
        "become placeholders until brokers join (KIP-409)."),
    _key(_CLUSTER, AUTO_CREATE_TOPICS, BOOLEAN, "false",
        "Create a topic when a client that allows it requests its metadata.",
        "true"),
    _key(_CLUSTER, NUM_PARTITIONS, integer(1), 1,
        "Number of partitions of a topic that a client creates without a number."),
    _key(_CLUSTER, DEFAULT_REPLICATION_FACTOR, integer(1, 32767), 1,
        "Number of replicas of a topic that a client creates without a number."),
    _key(_CLUSTER, DELETE_TOPICS, BOOLEAN, "true",
        "Allow clients to delete topics."),
    _key(_CLUSTER, CATCH_UP_REPLICAS, integer(1), 200,
        "Maximum number of replicas that catch up at the same time before another one is moved "
        "or placed."),
    _key(_CLUSTER, CATCH_UP_REPLICAS_PER_BROKER, integer(1), 50,
        "Maximum number of replicas that catch up on one broker."),
    _key(_CLUSTER, CATCH_UP_BYTES_PER_BROKER, long(1), 8 * _GIB,
        "Maximum total size in bytes of the local logs that these replicas copy from their "
        "leaders. A larger log is copied alone."),
    _key(_CLUSTER, TIERING_SYSTEM, BOOLEAN, "false",
        "Allow tiered topics in the cluster."),
    _key(_CLUSTER, DISABLE_POLICY, one_of({"retain": "retain", "delete": "delete"}), "retain",
        "Default of spec.tiering.disablePolicy (KIP-950)."),
    _key(_BOTH, CUSTOM_METADATA_MAX_BYTES, integer(0), 128,
        "Maximum size in bytes of a segment's custom metadata. Larger metadata aborts the copy "
        "(KIP-917)."),
    _key(_BOTH, REMOTE_DELETE_DELAY_MS, long(0), 60_000,
        "Time that objects stay in the tier after the commit that marks them, so that running "
        "reads can finish. Objects of a deleted topic are deleted at once."),
    _key(_BOTH, MERGE_MAX_BYTES, integer(0, 128 * _MIB), 64 * _MIB,
        "Maximum size of a segment that small segments in the tier are merged into. Segments of at "
        "most an eighth of it are merged, within segment.bytes and an eighth of the retention. "
        "0: no merges."),
    _key(_BOTH, SWEEP, BOOLEAN, "true",
        "Detect and remove objects in the tier that no manifest references."),
    _key(_BOTH, SWEEP_DELAY_MS, long(0), 86_400_000,
        "Minimum age of an unreferenced object before it is removed from the tier."),
    _key(_BOTH, REPLICA_SELECTOR, one_of({RACK_AWARE_SELECTOR: RACK_AWARE_SELECTOR}), None,
        "RackAwareReplicaSelector redirects consumers with client.rack to a replica in that rack "
        "(KIP-392). Unset: consumers read from leaders, unless they request another replica."),
    _key(_BOTH, REMOTE_READERS, _REMOTE_READERS, REMOTE_READERS_RACK,
        "Brokers from which consumers read what only the tier has. leader: the leader. rack: the "
        "leader redirects consumers with client.rack to in-sync replicas and Readers in that rack, "
        "and others to Readers. any: it spreads consumers evenly over those in the rack or, "
        "without one, over all in-sync replicas, itself included, and Readers."),
)
# fmt: on

# fmt: off
BROKER_KEYS = (
    # ------------------------------------------------------------ who and where
    _key(_BROKER, "node.id", integer(0), None, "Node id of the broker. Required."),
    _key(_BROKER, "cluster.id", TEXT, None,
        "Expected status.clusterId of the Cluster. Unset: the id in the certificate of "
        "tidemark.tls.directory."),
    _key(_BROKER, "log.dir", TEXT, None, "Directory of the logs. Required.", "/tmp/kafka-logs"),
    _key(_BROKER, "listeners", TEXT, None,
        "Comma-separated list of NAME://host:port. host:port alone is a listener named "
        "PLAINTEXT. REPLICATION://host:port is for other brokers; its default is a free port on "
        "the host of the first listener. Required.", "PLAINTEXT://:9092"),
    _key(_BROKER, "listener.security.protocol.map", TEXT,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Security protocol of each client listener, as NAME:protocol."),
    _key(_BROKER, "tidemark.tls.directory", TEXT, None,
        "Directory with tls.crt, tls.key and ca.crt for mutual TLS with other brokers and the "
        "operator. Required. listener.name.NAME.tidemark.tls.directory is the directory of a TLS "
        "listener and required there."),
    _key(_BROKER, "tidemark.replication.encrypted", BOOLEAN, "true",
        "Encrypt traffic between brokers after mutual authentication. The value must be "
        "identical on all brokers."),
    _key(_BROKER, "controller.addresses", TEXT, None, "host:port of each operator. Required."),
    _key(_BROKER, READERS_LISTENERS, TEXT, None,
        "Comma-separated names of listeners whose metadata lists Readers among the replicas of "
        "tiered partitions. Clients other than librdkafka read from Readers only there. Set it on "
        "all brokers, Readers included."),
    _key(_BROKER, "advertised.listeners", TEXT, None,
        "Addresses that clients receive, as NAME://host:port for each listener. A client "
        "receives the address of the listener that it connected to. Default: listeners."),
    _key(_BROKER, "broker.rack", TEXT, None,
        "Rack of the broker. spec.rack of the Broker takes precedence."),
    _key(_BROKER, "rack", TEXT, None, "Synonym of broker.rack that takes precedence over it."),
    _key(_BROKER, "metrics.host", TEXT, "127.0.0.1",
        "Host of the HTTP server for metrics and health."),
    _key(_BROKER, "metrics.port", integer(0, 65535), 0, "Port of that server. 0: a free port."),
    _key(_BROKER, "log.level", TEXT, "INFO", "Level of the broker's own log."),
    # ------------------------------------------------------------ who clients are
    _key(_BROKER, "ssl.client.auth", _CLIENT_AUTH, "none",
        "Client authentication by certificate on TLS listeners. The certificate's subject is the "
        "principal. Per listener: listener.name.NAME.ssl.client.auth."),
    _key(_BROKER, "sasl.enabled.mechanisms", TEXT, "SCRAM-SHA-256,SCRAM-SHA-512",
        "Comma-separated list of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER. Per "
        "listener: listener.name.NAME.sasl.enabled.mechanisms.", "GSSAPI"),
    _key(_BROKER, "tidemark.sasl.unencrypted.secrets", BOOLEAN, "false",
        "Allow PLAIN and OAUTHBEARER on listeners without encryption."),
    _key(_BROKER, "sasl.server.max.receive.size", integer(1), 512 * 1024,
        "Maximum size in bytes of a request before authentication is complete."),
    _key(_BROKER, "tidemark.authentication.timeout.ms", long(1), 10_000,
        "Time limit for a client to authenticate after it connects."),
    _key(_BROKER, "connection.failed.authentication.delay.ms", integer(0), 100,
        "Delay of the response to a failed authentication."),
    _key(_BROKER, "connections.max.reauth.ms", long(0), 0,
        "Interval after which a client of a SASL listener must reauthenticate (KIP-368). 0: only "
        "when its token expires."),
    _key(_BROKER, "sasl.oauthbearer.jwks.endpoint.url", TEXT, None,
        "https://, http:// or file:// URL of the keys that verify token signatures. Required for "
        "OAUTHBEARER."),
    _key(_BROKER, "sasl.oauthbearer.jwks.endpoint.refresh.ms", long(1), 3_600_000,
        "Interval between refreshes of the keys of the JWKS endpoint."),
    _key(_BROKER, "sasl.oauthbearer.expected.audience", TEXT, None,
        "Comma-separated list of accepted audiences. A token must have one of them. Unset: any "
        "audience."),
    _key(_BROKER, "sasl.oauthbearer.expected.issuer", TEXT, None,
        "Required issuer of a token. Unset: any issuer whose key is available."),
    _key(_BROKER, "sasl.oauthbearer.clock.skew.seconds", integer(0), 30,
        "Maximum clock difference to the token issuer."),
    _key(_BROKER, "sasl.oauthbearer.sub.claim.name", TEXT, "sub",
        "Token claim that contains the client's name."),
    _key(_BROKER, "allow.everyone.if.no.acl.found", BOOLEAN, "false",
        "Allow all users to access a resource without ACLs, if ACLs are enabled."),
    # ------------------------------------------------------------ connections
    _key(_BROKER, "socket.request.max.bytes", integer(1), 100 * _MIB,
        "Maximum size in bytes of a client request."),
    _key(_BROKER, "socket.send.buffer.bytes", integer(-1), 256 * 1024,
        "SO_SNDBUF of client connections, at most net.core.wmem_max. A consumer reads about twice "
        "this size per round trip, so raise it for distant consumers. -1: the kernel decides. "
        "Connections of other brokers ignore it.", 102_400),
    _key(_BROKER, "connections.max.idle.ms", long(1), 600_000,
        "Time after which an idle connection is closed."),
    _key(_BROKER, "max.connections", integer(1), 10_000,
        "Maximum number of connections.", 2**31 - 1),
    _key(_BROKER, "max.connections.per.ip", integer(1), 5_000,
        "Maximum number of connections from one address.", 2**31 - 1),
    _key(_BROKER, "tidemark.connection.creation.rate.per.ip", integer(1), 250,
        "Maximum number of new connections per second from one address, averaged over ten "
        "seconds. Further connections are closed."),
    _key(_BROKER, "queued.max.request.bytes", long(1), 256 * _MIB,
        "Maximum bytes of all requests in process.", -1),
    _key(_BROKER, "tidemark.answers.bytes.max", long(1024 * 1024), 128 * _MIB,
        "Maximum bytes of responses in process or not yet received by clients. Fetch responses "
        "shrink as the limit is approached."),
    _key(_BROKER, "tidemark.connection.requests.in.flight.max", integer(1), 64,
        "Maximum number of Produce requests in process per connection. Other requests are "
        "processed one at a time."),
    _key(_BROKER, "tidemark.connection.unsent.bytes.max", integer(1), _MIB,
        "Unsent bytes of a connection above which its next request is not processed."),
    _key(_BROKER, "quota.window.num", integer(2), 11,
        "Number of windows over which client quotas are measured."),
    _key(_BROKER, "quota.window.size.seconds", integer(1), 1, "Length of a window."),
    # ------------------------------------------------------------ fetching and replication
    _key(_BROKER, "fetch.max.bytes", integer(1024), 57_671_680,
        "Maximum bytes of one Fetch response."),
    _key(_BROKER, "max.request.partition.size.limit", integer(1), 2000,
        "Maximum number of partitions in one DescribeTopicPartitions response."),
    _key(_BROKER, "max.incremental.fetch.session.cache.slots", integer(0), 1000,
        "Maximum number of cached fetch sessions (KIP-227)."),
    _key(_BROKER, "remote.fetch.max.wait.ms", integer(0), 500,
        "Maximum time that a Fetch waits for the tier."),
    _key(_BROKER, "replica.fetch.wait.max.ms", integer(0), 500,
        "Maximum time that a leader delays a follower's fetch while there are no records."),
    _key(_BROKER, "replica.fetch.min.bytes", integer(1), 1,
        "Bytes at which a delayed follower fetch is answered."),
    _key(_BROKER, "replica.fetch.response.max.bytes", integer(1024), 10 * _MIB,
        "Maximum bytes of one follower fetch response."),
    _key(_BROKER, "replica.fetch.max.bytes", integer(1024), _MIB,
        "Maximum bytes per partition in a follower fetch response."),
    _key(_BROKER, "replica.fetch.backoff.ms", integer(1), 200, "Delay after a failed fetch.",
        1000),
    _key(_BROKER, "replica.socket.timeout.ms", integer(1), 30_000,
        "Maximum time that a follower waits for its leader's response."),
    _key(_BROKER, "replica.lag.time.max.ms", long(1), 30_000,
        "Time behind its leader after which a follower is removed from the ISR."),
    _key(_BROKER, "replica.high.watermark.checkpoint.interval.ms", long(1), 5_000,
        "Interval between checkpoints of high watermarks, log start offsets and recovery points."),
    # ------------------------------------------------------------ internal topics
    _key(_BROKER, "group.initial.rebalance.delay.ms", integer(0), 3000,
        "Time that a new group waits for more members."),
    _key(_BROKER, "group.min.session.timeout.ms", integer(0), 6000,
        "Minimum session timeout that a group member may request."),
    _key(_BROKER, "group.max.session.timeout.ms", integer(0), 1_800_000,
        "The longest."),
    _key(_BROKER, "group.max.size", integer(1), 2**31 - 1,
        "Maximum number of members in a group, at most 10,000."),
    _key(_BROKER, "group.consumer.session.timeout.ms", integer(1), 45_000,
        "Time without a heartbeat after which a member of a consumer group (KIP-848) is removed."),
    _key(_BROKER, "group.consumer.heartbeat.interval.ms", integer(1), 5000,
        "Heartbeat interval of consumer group members (KIP-848)."),
    _key(_BROKER, "group.consumer.min.session.timeout.ms", integer(1), 45_000,
        "Minimum session timeout that can be configured for one group."),
    _key(_BROKER, "group.consumer.max.session.timeout.ms", integer(1), 60_000,
        "The longest."),
    _key(_BROKER, "group.consumer.min.heartbeat.interval.ms", integer(1), 5000,
        "Minimum heartbeat interval that can be configured for one group."),
    _key(_BROKER, "group.consumer.max.heartbeat.interval.ms", integer(1), 15_000,
        "The longest."),
    _key(_BROKER, "group.consumer.min.assignment.interval.ms", integer(0), 0,
        "Minimum interval between target assignments that can be configured for one group."),
    _key(_BROKER, "group.consumer.max.assignment.interval.ms", integer(0), 15_000,
        "The longest."),
    _key(_BROKER, "group.consumer.max.size", integer(1), 2**31 - 1,
        "Maximum number of members in a consumer group (KIP-848), at most 10,000."),
    _key(_BROKER, "group.consumer.migration.policy", one_of({name: name for name in _MIGRATION}),
        "bidirectional",
        "Conversion of groups with members between protocols (KIP-848). upgrade: when the first "
        "consumer with group.protocol=consumer joins. downgrade: when the last one leaves. Also "
        "bidirectional and disabled."),
    _key(_BROKER, "group.consumer.assignment.interval.ms", integer(0, 15_000), 1000,
        "Minimum time between two target assignments of a consumer group (KIP-848), regardless "
        "of joins and leaves."),
    _key(_BROKER, "group.consumer.regex.refresh.interval.ms", integer(10_000), 600_000,
        "Interval at which regular expressions of consumer groups (KIP-848) are matched to "
        "topics. Ten seconds if topics have changed."),
    _key(_BROKER, "tidemark.groups.bytes.max", long(1024 * 1024), 512 * _MIB,
        "Approximate memory in bytes for members and offsets of all groups of the broker. Beyond "
        "it, new members are refused with GROUP_MAX_SIZE_REACHED and new offsets with "
        "INVALID_COMMIT_OFFSET_SIZE."),
    _key(_BROKER, "offset.metadata.max.bytes", integer(0), 4096,
        "Maximum length of the metadata that a client commits with an offset."),
    _key(_BROKER, "offsets.retention.minutes", integer(1), 10_080,
        "Retention of offsets after the last member of their group has left, or after the last "
        "commit for groups without members (KIP-211)."),
    _key(_BROKER, "offsets.retention.check.interval.ms", long(1), 600_000,
        "Interval between checks for expired offsets."),
    _key(_BROKER, "offsets.commit.timeout.ms", integer(1), 5000,
        "Time limit for the replication of an offset commit."),
    _key(_BROKER, "offsets.topic.num.partitions", integer(1), 50,
        "Number of partitions of __consumer_offsets at its creation, at most 10,000."),
    _key(_BROKER, "offsets.topic.replication.factor", integer(1, 32767), 3,
        "Number of replicas of __consumer_offsets. Missing replicas are placed when brokers join."),
    _key(_BROKER, "offsets.topic.segment.bytes", integer(1024 * 1024), 100 * _MIB,
        "Its segment.bytes."),
    _key(_BROKER, "transaction.state.log.num.partitions", integer(1), 50,
        "Number of partitions of __transaction_state at its creation, at most 10,000."),
    _key(_BROKER, "transaction.state.log.replication.factor", integer(1, 32767), 3,
        "Number of replicas of __transaction_state. Missing replicas follow as brokers join."),
    _key(_BROKER, "transaction.state.log.min.isr", integer(1), 2,
        "min.insync.replicas of __transaction_state, limited by its number of replicas."),
    _key(_BROKER, "transaction.state.log.segment.bytes", integer(1024 * 1024), 100 * _MIB,
        "Its segment.bytes."),
    _key(_BROKER, "transaction.max.timeout.ms", integer(1), 900_000,
        "Maximum transaction.timeout.ms that a producer may request."),
    _key(_BROKER, "transactional.id.expiration.ms", integer(1), 604_800_000,
        "Time after which the coordinator removes an unused transactional id."),
    _key(_BROKER, "tidemark.transactions.bytes.max", long(1024 * 1024), 256 * _MIB,
        "Memory in bytes for the transactional ids that the broker coordinates: 600 bytes each, "
        "and 100 per partition of a transaction. Beyond it, new ids and partitions are refused."),
    # ------------------------------------------------------------ the log
    _key(_BROKER, "log.retention.check.interval.ms", long(1), 300_000,
        "Interval between retention checks."),
    _key(_BROKER, "log.flush.scheduler.interval.ms", long(1), 1_000,
        "Interval between checks for logs to flush.", INT64_MAX),
    _key(_BROKER, "producer.id.expiration.ms", integer(1), 86_400_000,
        "Time after which a partition removes the state of an inactive producer (KIP-854)."),
    _key(_BROKER, "producer.id.expiration.check.interval.ms", integer(1), 600_000,
        "Interval between checks for inactive producers."),
    _key(_BROKER, "tidemark.producer.ids.max", integer(1), 500_000,
        "Maximum number of producers in all partitions of a broker, at up to 340 bytes each. "
        "Beyond the limit, the first batch of a new producer is refused (NOT_ENOUGH_REPLICAS, "
        "which clients retry) if its partition has 100 producers. No producer is removed before "
        "it expires."),
    _key(_BROKER, "log.cleaner.enable", BOOLEAN, "true",
        "Compact topics with cleanup.policy compact."),
    _key(_BROKER, "log.cleaner.threads", integer(0), 1,
        "Number of logs that are compacted in parallel."),
    _key(_BROKER, "log.cleaner.dedupe.buffer.size", long(1), 128 * _MIB,
        "Total memory in bytes of all cleaner threads for the last offset of each key, 24 bytes "
        "each. It is allocated on demand. A log with more keys is compacted in several passes."),
    _key(_BROKER, "log.cleaner.io.buffer.load.factor", RATIO, "0.9",
        "Maximum fill ratio of that memory."),
    _key(_BROKER, "log.cleaner.io.buffer.size", integer(0), 512 * 1024,
        "Total read buffer in bytes of all cleaner threads."),
    _key(_BROKER, "log.cleaner.io.max.bytes.per.second", long(1), INT64_MAX,
        "Average rate limit of compaction reads and writes, in bytes per second.",
        kafka_default="1.7976931348623157E308"),
    _key(_BROKER, "log.cleaner.backoff.ms", long(0), 15_000,
        "Delay before the next check if there was nothing to compact."),
    _key(_BROKER, "controlled.shutdown.max.ms", long(1), 15_000,
        "Maximum time that a shutdown waits for other brokers to take over leadership."),
    _key(_BROKER, "tidemark.health.loop.age.max.ms", integer(100), 10_000,
        "Time since the last event loop iteration at which the broker counts as stalled."),
    # ------------------------------------------------------------ the tier
    _key(_BROKER, "remote.log.manager.task.interval.ms", long(1), 30_000,
        "Interval between checks for segments to copy or expire."),
    _key(_BROKER, "remote.log.manager.task.retry.backoff.ms", long(1), 500,
        "Initial delay after a failure of the remote storage."),
    _key(_BROKER, "remote.log.manager.task.retry.backoff.max.ms", long(1), 30_000,
        "Maximum delay after repeated failures."),
    _key(_BROKER, "remote.log.manager.copier.thread.pool.size", integer(1), 10,
        "Number of copier threads."),
    _key(_BROKER, "remote.log.manager.expiration.thread.pool.size", integer(1), 10,
        "Number of expiration threads."),
    _key(_BROKER, "tidemark.remote.commit.threads", integer(1), 10,
        "Number of threads that commit to heads."),
    _key(_BROKER, "tidemark.remote.head.check.interval.ms", long(1), 600_000,
        "Interval at which a leader reads the heads of its partitions to detect a rollback."),
    _key(_BROKER, "tidemark.remote.store.probe.interval.ms", long(1), 3_600_000,
        "Interval at which a broker tests the remote storage for conditional writes."),
    _key(_BROKER, "tidemark.remote.sweep.interval.ms", long(1), 21_600_000,
        "Interval at which one broker of the cluster sweeps the tier."),
    _key(_BROKER, "remote.log.reader.threads", integer(1), 10,
        "Number of threads that read from the tier for clients."),
    _key(_BROKER, "remote.log.reader.max.pending.tasks", integer(1), 100,
        "Maximum number of reads that wait for such a thread. Further reads are refused."),
    _key(_BROKER, "remote.log.index.file.cache.total.size.bytes", long(1), 64 * _MIB,
        "Cache size in bytes for indexes of remote segments.", 1024 * _MIB),
    _key(_BROKER, "remote.log.manager.copy.max.bytes.per.second", long(1), INT64_MAX,
        "Average rate limit of copies to the tier, in bytes per second (KIP-956)."),
    _key(_BROKER, "remote.log.manager.copy.quota.window.num", integer(2), 11,
        "Number of windows over which the rate is measured."),
    _key(_BROKER, "remote.log.manager.copy.quota.window.size.seconds", integer(1), 1,
        "Length of a window."),
    _key(_BROKER, "remote.log.manager.fetch.max.bytes.per.second", long(1), INT64_MAX,
        "Average rate limit of reads from the tier for clients, in bytes per second (KIP-956)."),
    _key(_BROKER, "remote.log.manager.fetch.quota.window.num", integer(2), 11,
        "Number of windows over which the rate is measured."),
    _key(_BROKER, "remote.log.manager.fetch.quota.window.size.seconds", integer(1), 1,
        "Length of a window."),
    _key(_BROKER, "tidemark.remote.chunk.cache.bytes", long(1), 32 * _MIB,
        "Cache size in bytes for chunks of remote segments."),
    _key(_BROKER, "tidemark.remote.chunk.cache.disk.bytes", long(0), 0,
        "Size in bytes of the cache on disk for chunks of remote segments. 0: no cache on disk."),
    _key(_BROKER, CHUNK_CACHE_PATH, TEXT, None,
        "Directory of the cache on disk. The broker uses the folder broker-ID in it. Required with "
        "a size above 0."),
    _key(_BROKER, "tidemark.remote.chunk.bytes", integer(4096), 256 * 1024,
        "Size in bytes of a chunk of a remote segment. Chunks are the unit of reads and of the "
        "cache. Adjacent chunks are read in one request."),
    _key(_BROKER, "tidemark.remote.read.ahead.max.bytes", long(0), 8 * _MIB,
        "Maximum number of bytes to read in advance for each sequential reader of the tier. All "
        "readers together use half of the chunk cache at most. 0: read nothing in advance."),
    _key(_BROKER, "tidemark.remote.page.cache.bytes", long(1), 64 * _MIB,
        "Cache size in bytes for sealed manifest pages."),
)
# fmt: on

#: What may be set as ``listener.name.NAME.KEY``, for one listener. ``tidemark.tls.directory`` of no
#: listener is another folder: the one by which brokers know each other.
PER_LISTENER = frozenset({"ssl.client.auth", "sasl.enabled.mechanisms", "tidemark.tls.directory"})
