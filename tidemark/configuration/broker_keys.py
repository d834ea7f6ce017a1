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
SWEEP = "tidemark.remote.sweep.enable"
SWEEP_DELAY_MS = "tidemark.remote.sweep.delay.ms"
REPLICA_SELECTOR = "replica.selector.class"
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
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
    return ConfigKey(
        name=name,
        type=type,
        default=None if default is None else str(default),
        meaning=meaning,
        scopes=scopes,
        kafka_default=None if kafka_default is None else str(kafka_default),
    )


_MIGRATION = ("bidirectional", "upgrade", "downgrade", "disabled")
_CLIENT_AUTH = one_of({each: each for each in ("none", "requested", "required")})

# fmt: off
CLUSTER_KEYS = (
    _key(_CLUSTER, UNDER_REPLICATED_CREATION, BOOLEAN, "false",
        "Create topics while brokers are missing; the missing replicas are placeholders "
        "(KIP-409)."),
    _key(_CLUSTER, AUTO_CREATE_TOPICS, BOOLEAN, "false",
        "Whether a topic is created because a client asks for its metadata and lets it be.",
        "true"),
    _key(_CLUSTER, NUM_PARTITIONS, integer(1), 1,
        "Partitions of a topic that a client creates without saying how many."),
    _key(_CLUSTER, DEFAULT_REPLICATION_FACTOR, integer(1, 32767), 1,
        "Replicas of a topic that a client creates without saying how many."),
    _key(_CLUSTER, DELETE_TOPICS, BOOLEAN, "true",
        "Whether clients may delete topics."),
    _key(_CLUSTER, CATCH_UP_REPLICAS, integer(1), 200,
        "Replicas that catch up at the same time before another one is moved or placed."),
    _key(_CLUSTER, CATCH_UP_REPLICAS_PER_BROKER, integer(1), 50,
        "Of those, how many may be on one broker."),
    _key(_CLUSTER, CATCH_UP_BYTES_PER_BROKER, long(1), 8 * _GIB,
        "And how large their leaders' local logs may be together; a larger one goes alone."),
    _key(_CLUSTER, TIERING_SYSTEM, BOOLEAN, "false",
        "Whether topics of the cluster may be tiered."),
    _key(_CLUSTER, DISABLE_POLICY, one_of({"retain": "retain", "delete": "delete"}), "retain",
        "The default of spec.tiering.disablePolicy (KIP-950)."),
    _key(_BOTH, CUSTOM_METADATA_MAX_BYTES, integer(0), 128,
        "Largest custom metadata of a segment; a larger one ends its copy (KIP-917)."),
    _key(_BOTH, REMOTE_DELETE_DELAY_MS, long(0), 60_000,
        "How long objects outlive the commit that marks them, so that a reader's plan holds; those "
        "of a deleted topic go at once."),
    _key(_BOTH, SWEEP, BOOLEAN, "true",
        "Whether a broker looks for what nothing names in the tier, and removes it."),
    _key(_BOTH, SWEEP_DELAY_MS, long(0), 86_400_000,
        "How old something that nothing names in the tier has to be before it is removed."),
    _key(_BOTH, REPLICA_SELECTOR, one_of({RACK_AWARE_SELECTOR: RACK_AWARE_SELECTOR}), None,
        "RackAwareReplicaSelector sends a consumer that tells its rack to a replica there "
        "(KIP-392). Unset: consumers read from leaders, unless they ask elsewhere."),
)
# fmt: on

# fmt: off
BROKER_KEYS = (
    # ------------------------------------------------------------ who and where
    _key(_BROKER, "node.id", integer(0), None, "The broker's id; required."),
    _key(_BROKER, "cluster.id", TEXT, None,
        "status.clusterId of the Cluster. Unset: what the certificate in tidemark.tls.directory "
        "says."),
    _key(_BROKER, "log.dir", TEXT, None, "The folder of the logs; required.", "/tmp/kafka-logs"),
    _key(_BROKER, "listeners", TEXT, None,
        "NAME://host:port of each listener, with commas; required. host:port alone is one named "
        "PLAINTEXT. REPLICATION://host:port is for other brokers; without it they get a free port "
        "of the first one's host.", "PLAINTEXT://:9092"),
    _key(_BROKER, "listener.security.protocol.map", TEXT,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "NAME:protocol of each listener for clients."),
    _key(_BROKER, "tidemark.tls.directory", TEXT, None,
        "The folder with tls.crt, tls.key and ca.crt, by which this broker, other brokers and the "
        "operator know each other; required. listener.name.NAME.tidemark.tls.directory is the "
        "folder of what a listener with TLS shows to clients; required there."),
    _key(_BROKER, "tidemark.replication.encrypted", BOOLEAN, "true",
        "Whether brokers stay in TLS once they have proven to each other who they are; the same on "
        "all of them."),
    _key(_BROKER, "controller.addresses", TEXT, None, "host:port of each operator; required."),
    _key(_BROKER, "advertised.listeners", TEXT, None, "What clients are told, by the names of "
        "the listeners; each hears of the address of the listener to which it came. Unset: "
        "listeners."),
    _key(_BROKER, "broker.rack", TEXT, None, "The rack; the Broker's spec.rack goes before it."),
    _key(_BROKER, "rack", TEXT, None, "The same as broker.rack, and goes before it."),
    _key(_BROKER, "metrics.host", TEXT, "127.0.0.1", "Where metrics and health are served."),
    _key(_BROKER, "metrics.port", integer(0, 65535), 0, "Its port; 0: a free one."),
    _key(_BROKER, "log.level", TEXT, "INFO", "The level of the broker's own log."),
    # ------------------------------------------------------------ who clients are
    _key(_BROKER, "ssl.client.auth", _CLIENT_AUTH, "none",
        "Whether clients of a TLS listener show a certificate; what it is issued to is "
        "their name. Also for one listener: listener.name.NAME.ssl.client.auth."),
    _key(_BROKER, "sasl.enabled.mechanisms", TEXT, "SCRAM-SHA-256,SCRAM-SHA-512",
        "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER, with commas. Also for one listener: "
        "listener.name.NAME.sasl.enabled.mechanisms.", "GSSAPI"),
    _key(_BROKER, "tidemark.sasl.unencrypted.secrets", BOOLEAN, "false",
        "Whether PLAIN and OAUTHBEARER may be used on a listener that is not encrypted."),
    _key(_BROKER, "sasl.server.max.receive.size", integer(1), 512 * 1024,
        "The largest request of a client that has not proven yet who it is."),
    _key(_BROKER, "tidemark.authentication.timeout.ms", long(1), 10_000,
        "How long a client may take, from its connection on, to prove who it is."),
    _key(_BROKER, "connection.failed.authentication.delay.ms", integer(0), 100,
        "How long a client that failed to do so waits for the answer."),
    _key(_BROKER, "connections.max.reauth.ms", long(0), 0,
        "After how long a client of a SASL listener must prove again who it is (KIP-368); 0: only "
        "when its token ends."),
    _key(_BROKER, "sasl.oauthbearer.jwks.endpoint.url", TEXT, None,
        "Where the keys are that tokens are signed with, https://, http:// or file://; required "
        "for OAUTHBEARER."),
    _key(_BROKER, "sasl.oauthbearer.jwks.endpoint.refresh.ms", long(1), 3_600_000,
        "Pause between two looks at these keys."),
    _key(_BROKER, "sasl.oauthbearer.expected.audience", TEXT, None,
        "What a token must be meant for, one of these, with commas; unset: anything."),
    _key(_BROKER, "sasl.oauthbearer.expected.issuer", TEXT, None,
        "Who must have issued it; unset: anybody whose key is there."),
    _key(_BROKER, "sasl.oauthbearer.clock.skew.seconds", integer(0), 30,
        "How much the issuer's clock may differ."),
    _key(_BROKER, "sasl.oauthbearer.sub.claim.name", TEXT, "sub",
        "The claim that is the client's name."),
    _key(_BROKER, "allow.everyone.if.no.acl.found", BOOLEAN, "false",
        "Whether everybody may use what no ACL is about, where ACLs decide."),
    # ------------------------------------------------------------ connections
    _key(_BROKER, "socket.request.max.bytes", integer(1), 100 * _MIB,
        "The largest request of a client."),
    _key(_BROKER, "connections.max.idle.ms", long(1), 600_000,
        "After how long an idle connection is closed."),
    _key(_BROKER, "max.connections", integer(1), 10_000, "Connections at once.", 2**31 - 1),
    _key(_BROKER, "max.connections.per.ip", integer(1), 5_000,
        "Connections at once from one address.", 2**31 - 1),
    _key(_BROKER, "tidemark.connection.creation.rate.per.ip", integer(1), 250,
        "New connections a second from one address, over the last ten seconds; more are closed."),
    _key(_BROKER, "queued.max.request.bytes", long(1), 256 * _MIB,
        "Bytes of all requests that are not answered yet.", -1),
    _key(_BROKER, "tidemark.answers.bytes.max", long(1024 * 1024), 128 * _MIB,
        "Bytes of answers that are being made or not taken by clients yet; the nearer, the smaller "
        "are the answers to Fetches."),
    _key(_BROKER, "tidemark.connection.requests.in.flight.max", integer(1), 8,
        "Produce requests of one connection that are worked on at once; of all others one."),
    _key(_BROKER, "tidemark.connection.unsent.bytes.max", integer(1), _MIB,
        "Unsent bytes of a connection above which no request of it is begun."),
    _key(_BROKER, "quota.window.num", integer(2), 11,
        "Over how many windows clients' quotas are measured."),
    _key(_BROKER, "quota.window.size.seconds", integer(1), 1, "How long such a window is."),
    # ------------------------------------------------------------ fetching and replication
    _key(_BROKER, "fetch.max.bytes", integer(1024), 57_671_680,
        "The most that one Fetch is given."),
    _key(_BROKER, "max.request.partition.size.limit", integer(1), 2000,
        "Partitions in one answer to DescribeTopicPartitions."),
    _key(_BROKER, "max.incremental.fetch.session.cache.slots", integer(0), 1000,
        "How many clients' fetch sessions are kept (KIP-227)."),
    _key(_BROKER, "remote.fetch.max.wait.ms", integer(0), 500,
        "How long a Fetch waits for the tier."),
    _key(_BROKER, "replica.fetch.wait.max.ms", integer(0), 500,
        "How long a leader keeps a follower's fetch waiting for records."),
    _key(_BROKER, "replica.fetch.min.bytes", integer(1), 1, "Bytes that such a fetch waits for."),
    _key(_BROKER, "replica.fetch.response.max.bytes", integer(1024), 10 * _MIB,
        "The most that one such fetch is given."),
    _key(_BROKER, "replica.fetch.max.bytes", integer(1024), _MIB,
        "The most that it is given of one partition."),
    _key(_BROKER, "replica.fetch.backoff.ms", integer(1), 200, "Pause after a fetch that failed.",
        1000),
    _key(_BROKER, "replica.socket.timeout.ms", integer(1), 30_000,
        "How long a follower waits for its leader's answer."),
    _key(_BROKER, "replica.lag.time.max.ms", long(1), 30_000,
        "After how long behind its leader a follower leaves the ISR."),
    _key(_BROKER, "replica.high.watermark.checkpoint.interval.ms", long(1), 5_000,
        "Pause between checkpoints of high watermarks, log starts and recovery points."),
    # ------------------------------------------------------------ internal topics
    _key(_BROKER, "group.initial.rebalance.delay.ms", integer(0), 3000,
        "How long a group that begins waits for more members."),
    _key(_BROKER, "group.min.session.timeout.ms", integer(0), 6000,
        "The shortest session that a member of a group may ask for."),
    _key(_BROKER, "group.max.session.timeout.ms", integer(0), 1_800_000,
        "The longest."),
    _key(_BROKER, "group.max.size", integer(1), 2**31 - 1,
        "Members of a group at most; never more than 10,000."),
    _key(_BROKER, "group.consumer.session.timeout.ms", integer(1), 45_000,
        "After how long a member of a consumer group (KIP-848) that is not heard of is gone."),
    _key(_BROKER, "group.consumer.heartbeat.interval.ms", integer(1), 5000,
        "How often members of consumer groups (KIP-848) are to be heard of."),
    _key(_BROKER, "group.consumer.min.session.timeout.ms", integer(1), 45_000,
        "The shortest session that one group may be given."),
    _key(_BROKER, "group.consumer.max.session.timeout.ms", integer(1), 60_000,
        "The longest."),
    _key(_BROKER, "group.consumer.min.heartbeat.interval.ms", integer(1), 5000,
        "The shortest time between heartbeats that one group may be given."),
    _key(_BROKER, "group.consumer.max.heartbeat.interval.ms", integer(1), 15_000,
        "The longest."),
    _key(_BROKER, "group.consumer.min.assignment.interval.ms", integer(0), 0,
        "The shortest time between targets that one group may be given."),
    _key(_BROKER, "group.consumer.max.assignment.interval.ms", integer(0), 15_000,
        "The longest."),
    _key(_BROKER, "group.consumer.max.size", integer(1), 2**31 - 1,
        "Members of a consumer group (KIP-848) at most; never more than 10,000."),
    _key(_BROKER, "group.consumer.migration.policy", one_of({each: each for each in _MIGRATION}),
        "bidirectional",
        "Whether a group changes its protocol while it has members (KIP-848): upgrade, when the "
        "first consumer joins that has group.protocol=consumer; downgrade, when the last one goes; "
        "bidirectional, disabled."),
    _key(_BROKER, "group.consumer.assignment.interval.ms", integer(0, 15_000), 1000,
        "How long the targets of a consumer group (KIP-848) stay as they are, however many members "
        "come and go."),
    _key(_BROKER, "group.consumer.regex.refresh.interval.ms", integer(10_000), 600_000,
        "How often topics are looked up for the regular expressions of consumer groups (KIP-848); "
        "ten seconds where topics have changed."),
    _key(_BROKER, "tidemark.groups.bytes.max", long(1024 * 1024), 512 * _MIB,
        "About what members and offsets of all groups of this broker may take of memory; beyond "
        "that new members are refused with GROUP_MAX_SIZE_REACHED and new offsets with "
        "INVALID_COMMIT_OFFSET_SIZE."),
    _key(_BROKER, "offset.metadata.max.bytes", integer(0), 4096,
        "The longest text that a client may keep with an offset."),
    _key(_BROKER, "offsets.retention.minutes", integer(1), 10_080,
        "How long offsets outlive their group's last member, or the last commit where nobody is a "
        "member (KIP-211)."),
    _key(_BROKER, "offsets.retention.check.interval.ms", long(1), 600_000,
        "How often a group is looked at for offsets that have expired."),
    _key(_BROKER, "offsets.commit.timeout.ms", integer(1), 5000,
        "How long a commit of offsets may take to be replicated."),
    _key(_BROKER, "offsets.topic.num.partitions", integer(1), 50,
        "Partitions of __consumer_offsets when it is created; at most 10,000."),
    _key(_BROKER, "offsets.topic.replication.factor", integer(1, 32767), 3,
        "Its replicas; those for which brokers are missing are filled as these come."),
    _key(_BROKER, "offsets.topic.segment.bytes", integer(1024 * 1024), 100 * _MIB,
        "Its segment.bytes."),
    _key(_BROKER, "transaction.state.log.num.partitions", integer(1), 50,
        "Partitions of __transaction_state when it is created; at most 10,000."),
    _key(_BROKER, "transaction.state.log.replication.factor", integer(1, 32767), 3,
        "Its replicas; those for which brokers are missing are filled as these come."),
    _key(_BROKER, "transaction.state.log.min.isr", integer(1), 2,
        "Its min.insync.replicas, as far as there are so many replicas."),
    _key(_BROKER, "transaction.state.log.segment.bytes", integer(1024 * 1024), 100 * _MIB,
        "Its segment.bytes."),
    _key(_BROKER, "transaction.max.timeout.ms", integer(1), 900_000,
        "The longest transaction.timeout.ms that a producer may ask for."),
    _key(_BROKER, "transactional.id.expiration.ms", integer(1), 604_800_000,
        "After how long the coordinator forgets a transactional id that nobody uses."),
    _key(_BROKER, "tidemark.transactions.bytes.max", long(1024 * 1024), 256 * _MIB,
        "Memory of a broker for the transactional ids that it coordinates, 600 bytes each, and 100 "
        "for each partition of their transactions; beyond it nothing is added."),
    # ------------------------------------------------------------ the log
    _key(_BROKER, "log.retention.check.interval.ms", long(1), 300_000,
        "Pause between two looks at what retention may delete."),
    _key(_BROKER, "log.flush.scheduler.interval.ms", long(1), 1_000,
        "Pause between two looks at what is to be made durable.", INT64_MAX),
    _key(_BROKER, "producer.id.expiration.ms", integer(1), 86_400_000,
        "After how long a partition forgets a producer that writes nothing (KIP-854)."),
    _key(_BROKER, "producer.id.expiration.check.interval.ms", integer(1), 600_000,
        "Pause between two looks at which to forget."),
    _key(_BROKER, "tidemark.producer.ids.max", integer(1), 500_000,
        "Producers that all partitions of a broker remember, at up to 340 bytes each. Beyond the "
        "limit, the first batch of a new producer is refused (NOT_ENOUGH_REPLICAS, which clients "
        "retry) if its partition has 100 producers. No producer is forgotten before it expires."),
    _key(_BROKER, "log.cleaner.enable", BOOLEAN, "true",
        "Whether topics with cleanup.policy compact are compacted."),
    _key(_BROKER, "log.cleaner.threads", integer(0), 1, "Logs that are compacted at once."),
    _key(_BROKER, "log.cleaner.dedupe.buffer.size", long(1), 128 * _MIB,
        "Memory for the last offset of each key, for all threads together, 24 bytes each; taken "
        "only as far as it is needed. A log with more keys is compacted in several goes."),
    _key(_BROKER, "log.cleaner.io.buffer.load.factor", RATIO, "0.9",
        "How full that memory may become."),
    _key(_BROKER, "log.cleaner.io.buffer.size", integer(0), 512 * 1024,
        "How much of a log is read at once, for all threads together."),
    _key(_BROKER, "log.cleaner.io.max.bytes.per.second", long(1), INT64_MAX,
        "What compaction reads and writes, in the mean.",
        kafka_default="1.7976931348623157E308"),
    _key(_BROKER, "log.cleaner.backoff.ms", long(0), 15_000,
        "Pause before another look, where there was nothing to compact."),
    _key(_BROKER, "controlled.shutdown.max.ms", long(1), 15_000,
        "How long a shutdown waits for other brokers to lead."),
    _key(_BROKER, "tidemark.health.loop.age.max.ms", integer(100), 10_000,
        "Age of the event loop's last turn at which the broker counts as stalled."),
    # ------------------------------------------------------------ the tier
    _key(_BROKER, "remote.log.manager.task.interval.ms", long(1), 30_000,
        "Pause between two looks at what is to be copied or expired."),
    _key(_BROKER, "remote.log.manager.task.retry.backoff.ms", long(1), 500,
        "First pause after a failure of the store."),
    _key(_BROKER, "remote.log.manager.task.retry.backoff.max.ms", long(1), 30_000,
        "Longest such pause."),
    _key(_BROKER, "remote.log.manager.copier.thread.pool.size", integer(1), 10,
        "Threads that copy."),
    _key(_BROKER, "remote.log.manager.expiration.thread.pool.size", integer(1), 10,
        "Threads that expire."),
    _key(_BROKER, "tidemark.remote.commit.threads", integer(1), 10,
        "Threads that commit to heads."),
    _key(_BROKER, "tidemark.remote.head.check.interval.ms", long(1), 600_000,
        "How often a leader reads the heads of its partitions to detect one that went back."),
    _key(_BROKER, "tidemark.remote.store.probe.interval.ms", long(1), 3_600_000,
        "How often a broker probes the remote storage for conditional writes."),
    _key(_BROKER, "tidemark.remote.sweep.interval.ms", long(1), 21_600_000,
        "How often the tier is swept, by one broker of all."),
    _key(_BROKER, "remote.log.reader.threads", integer(1), 10, "Threads that read for clients."),
    _key(_BROKER, "remote.log.reader.max.pending.tasks", integer(1), 100,
        "Reads that may wait for such a thread; more are refused."),
    _key(_BROKER, "remote.log.index.file.cache.total.size.bytes", long(1), 64 * _MIB,
        "Memory for indexes of remote segments.", 1024 * _MIB),
    _key(_BROKER, "remote.log.manager.copy.max.bytes.per.second", long(1), INT64_MAX,
        "What the broker copies to the tier, in the mean (KIP-956)."),
    _key(_BROKER, "remote.log.manager.copy.quota.window.num", integer(2), 11,
        "Over how many windows that is measured."),
    _key(_BROKER, "remote.log.manager.copy.quota.window.size.seconds", integer(1), 1,
        "How long such a window is."),
    _key(_BROKER, "remote.log.manager.fetch.max.bytes.per.second", long(1), INT64_MAX,
        "What the broker reads from the tier for clients, in the mean (KIP-956)."),
    _key(_BROKER, "remote.log.manager.fetch.quota.window.num", integer(2), 11,
        "Over how many windows that is measured."),
    _key(_BROKER, "remote.log.manager.fetch.quota.window.size.seconds", integer(1), 1,
        "How long such a window is."),
    _key(_BROKER, "tidemark.remote.chunk.cache.bytes", long(1), 32 * _MIB,
        "Memory for pieces of remote segments."),
    _key(_BROKER, "tidemark.remote.chunk.bytes", integer(4096), 2 * _MIB,
        "How much of a remote segment is read at once."),
    _key(_BROKER, "tidemark.remote.page.cache.bytes", long(1), 64 * _MIB,
        "Memory for sealed pages of manifests."),
)
# fmt: on

#: What may be set as ``listener.name.NAME.KEY``, for one listener. ``tidemark.tls.directory`` of no
#: listener is another folder: the one by which brokers know each other.
PER_LISTENER = frozenset({"ssl.client.auth", "sasl.enabled.mechanisms", "tidemark.tls.directory"})
