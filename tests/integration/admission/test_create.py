"""Objects that the API server accepts and rejects on creation, and its messages."""

from typing import Any

import pytest

from tests import kstatus
from tests.integration.admission.api_server import (
    AdmissionApi,
    AdmissionRefused,
    Object,
    azure_storage,
    broker,
    broker_in_a_pod,
    broker_pod,
    cluster,
    edited,
    export,
    external_listener,
    gcs_storage,
    manifest,
    partition_slice,
    record_deletion,
    s3_storage,
    tiered_topic,
    topic,
)

# Four labels of 62 characters: a valid object name that is longer than a topic name may be.
LONG_NAME = ".".join(["a" * 62] * 4)

# Each kind in its smallest form and with all of its fields.
ACCEPTED: dict[str, Object] = {
    "plain topic": topic(),
    "topic with a name that Kubernetes has not": topic(topicName="Flights_2013.v1"),
    "numbers without quotes": topic(config={"retention.ms": 604800000, "segment.ms": -1 + 2}),
    "text values": topic(config={"cleanup.policy": "compact,delete", "retention.ms": "-1"}),
    "largest long": topic(config={"retention.ms": "9223372036854775807"}),
    "tiered topic with everything": tiered_topic(
        config={"retention.ms": "7200000", "retention.bytes": 1048576},
        tiering={
            "enabled": True,
            "disablePolicy": "Delete",
            "localRetention": {"time": "1h30m", "size": "1Mi"},
        },
        deletionPolicy="Orphan",
    ),
    "local retention equal to the total": tiered_topic(
        config={"retention.ms": "3600000"},
        tiering={"enabled": True, "localRetention": {"time": "1h"}},
    ),
    "local retention under unlimited total": tiered_topic(
        config={"retention.ms": "-1", "retention.bytes": "-1"},
        tiering={"enabled": True, "localRetention": {"time": "9999h", "size": "1Pi"}},
    ),
    "large local size": tiered_topic(
        tiering={"enabled": True, "localRetention": {"size": "100Ti"}}
    ),
    "local size as a bare number": tiered_topic(
        tiering={"enabled": True, "localRetention": {"size": 1048576}}
    ),
    "maximum lag": tiered_topic(
        tiering={"enabled": True, "maxLag": {"time": "1s", "size": "2Mi"}, "paused": True}
    ),
    "maximum lag as a bare number": tiered_topic(
        tiering={"enabled": True, "maxLag": {"size": 2097152}}
    ),
    "tiering off with compaction": topic(
        config={"cleanup.policy": "compact"}, tiering={"enabled": False}
    ),
    "broker": broker(rack="a"),
    "broker in a pod": broker_in_a_pod(),
    "broker in a pod with everything": broker_in_a_pod(
        imagePullPolicy="Always",
        imagePullSecrets=[{"name": "registry"}],
        serviceAccountName="brokers",
        env=[{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        storage={"size": "1Ti", "storageClassName": "fast"},
        listeners=[
            {"name": "IN", "port": 9092, "protocol": "PLAINTEXT"},
            {
                "name": "OUT",
                "port": 9093,
                "protocol": "SASL_SSL",
                "tlsSecretRef": {"name": "shown"},
            },
        ],
        replicationPort=9193,
        metricsPort=8181,
        config={"num.io.threads": "8", "listener.name.out.ssl.client.auth": "required"},
        resources={"requests": {"cpu": "500m", "memory": 1073741824}, "limits": {"cpu": 2}},
        terminationGracePeriodSeconds=90,
        rackTopologyKey="topology.kubernetes.io/zone",
        nodeSelector={"disk": "ssd"},
        tolerations=[{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
        affinity={"nodeAffinity": {"any": "thing"}},
        priorityClassName="high",
        podLabels={"a": "b"},
        podAnnotations={"c": "d"},
    ),
    "broker on ports of nodes": broker_in_a_pod(
        listeners=[
            external_listener(
                nodeAddress="ExternalIP",
                host="b{nodeId}.example.com",
                externalTrafficPolicy="Local",
                annotations={"a": "b"},
                bootstrap={"nodePort": 30000, "host": "example.com", "port": 443},
                brokers=[{"nodeId": 1, "nodePort": 30001}, {"nodeId": 2, "host": "x", "port": 1}],
            )
        ]
    ),
    "broker behind a load balancer": broker_in_a_pod(
        listeners=[
            external_listener(
                type="LoadBalancer",
                host="b{nodeId}.example.com",
                port=443,
                loadBalancerClass="example.com/fast",
                loadBalancerSourceRanges=["192.0.2.0/24"],
            )
        ]
    ),
    "cluster that makes brokers": cluster(
        brokers={"replicas": 3, "racks": ["a", "b"], "template": broker_pod()}
    ),
    "cluster without a tier": cluster(remoteStorage=None),
    "cluster with a folder": cluster(
        config={
            "enable.under.replicated.topic.creation": "true",
            "remote.log.disable.policy": "delete",
            "remote.log.metadata.custom.metadata.max.bytes": 128,
            "log.retention.ms": 604800000,
            "log.local.retention.bytes": "-2",
        }
    ),
    "cluster with S3": cluster(remoteStorage=s3_storage(prefix="a/b")),
    "S3 with the pods' identities": cluster(
        remoteStorage={"s3": {"region": "x", "buckets": ["one-bucket"]}}
    ),
    "S3 with everything": cluster(
        remoteStorage=s3_storage(
            caSecretRef={"name": "ca"},
            roleArn="arn:aws:iam::123456789012:role/path/tier",
            encryption="SSE-KMS",
            kmsKeyId="arn:aws:kms:eu-central-1:123456789012:key/k",
            storageClass="STANDARD_IA",
            addressing="virtualHost",
            createBuckets=True,
        )
    ),
    "cluster with Google Cloud Storage": cluster(
        remoteStorage=gcs_storage(prefix="a/b", credentialsSecretRef={"name": "keys"})
    ),
    "cluster with Azure": cluster(remoteStorage=azure_storage(endpoint="http://127.0.0.1:1")),
    "deletion in some partitions": record_deletion(
        partitions=[
            {"partition": 0, "beforeOffset": 7},
            {"partition": 1, "beforeOffset": 0, "leaderEpoch": 3},
            {"partition": 2, "beforeTime": "2013-07-01T00:00:00Z"},
        ],
        timeout="5m",
        dryRun=True,
        ttlAfterFinished="24h",
    ),
    "deletion in all partitions by time": record_deletion(
        all={"beforeTime": "2013-07-01T00:00:00.123+02:00"}, ttlAfterFinished="24h"
    ),
    "deletion of everything": record_deletion(all={"beforeOffset": -1}),
    "deletion of everything of one partition": record_deletion(
        partitions=[{"partition": 1, "beforeOffset": -1}]
    ),
    "slice": partition_slice(),
}

# A reference to one key of a Secret.
VALUE = {"secretKeyRef": {"name": "keys", "key": "key"}}
ACCEPTED |= {
    "export": export(),
    "export with everything": export(
        table={
            "format": "iceberg",
            "warehouse": None,
            "catalog": {"type": "rest", "uri": "https://catalog.example"},
            "catalogSecrets": [{"name": "token", **VALUE}],
            "schema": {"format": "json", "fields": "id BIGINT, name STRING"},
            "deadLetters": "db.flights_dlq",
            "mode": "upsert",
            "partition": "day",
            "keyBuckets": 16,
            "properties": {"write.target-file-size-bytes": "134217728"},
        },
        source={
            "tier": "auto",
            "listener": "SECURE",
            "userRef": {"name": "exporter"},
            "trustedSecretRef": {"name": "exporter", "key": "ca.crt"},
            "options": {"kafka.security.protocol": "SASL_SSL", "failOnDataLoss": "false"},
        },
        continuous={"interval": "1m30s"},
        suspend=True,
        job={
            "image": "tidemark/pipeline:1",
            "cores": 4,
            "resources": {"limits": {"memory": "4Gi"}},
            "conf": {"spark.driver.memory": "2g"},
            "confSecrets": [{"name": "spark.hadoop.fs.s3a.secret.key", **VALUE}],
            "jars": ["/opt/jars/iceberg.jar"],
            "volumes": [{"claimName": "lake", "mountPath": "/lake"}],
            "serviceAccountName": "exporter",
        },
    ),
    "export of many topics": export(
        topicRef=None,
        topics={"pattern": "orders-.*"},
        table={
            "name": "lake.{topic}",
            "deadLetters": "dlq.{topic}_",
            "schema": {"format": "json", "fields": "id BIGINT"},
        },
    ),
    "export of named topics": export(
        topicRef=None, topics={"names": ["a", "b.c"]}, table={"name": "{topic}.rows"}
    ),
    "export of labelled topics": export(
        topicRef=None,
        topics={"selector": {"matchLabels": {"lake": "yes"}}},
        table={"name": "lake.{topic}"},
    ),
    "export with executors": export(
        job={
            "executors": {
                "min": 0,
                "max": 8,
                "cores": 4,
                "memory": "4Gi",
                "podTemplate": {
                    "nodeSelector": {"pool": "spot"},
                    "tolerations": [{"key": "spot", "operator": "Exists"}],
                },
            }
        }
    ),
    "export with a SparkApplication": export(
        job={
            "executors": {"max": 8},
            "sparkApplication": {
                "sparkVersion": "4.1.3",
                "batchScheduler": "yunikorn",
                "queue": "root.lake",
            },
        }
    ),
    "export of Avro by its text": export(
        table={"schema": {"format": "avro", "definition": "{}", "evolution": "grow"}}
    ),
    "export of Protobuf by a file": export(
        table={"schema": {"format": "protobuf", "file": "/lake/o.proto", "message": "shop.Order"}}
    ),
    "export by a registry": export(
        table={
            "schema": {
                "format": "avro",
                "registry": {
                    "url": "https://one:8081,https://two:8081/apis/ccompat/v7",
                    "options": {"subject": "s", "unknown": "stop", "user": "reader"},
                    "secrets": [{"name": "password", **VALUE}],
                    "trustedSecretRef": {"name": "trust", "key": "ca.crt"},
                    "certificateSecretRef": {"name": "shown"},
                },
            }
        }
    ),
    **{
        f"export at {when}": export(schedule=when, timeZone="Europe/Berlin")
        for when in ("*/5 * * * *", "0 2 * * MON-FRI", "@daily", "0  0 1,15 * *")
    },
}

REFUSED: dict[str, tuple[Object, str]] = {
    # ------------------------------------------------------------------ Topic: names and numbers
    "no partitions": (edited(topic(), "spec.partitions", ...), "spec.partitions: Required"),
    "zero partitions": (topic(partitions=0), "should be greater than or equal to 1"),
    "too many partitions": (topic(partitions=10001), "should be less than or equal to 10000"),
    "no replicas": (topic(replicationFactor=0), "should be greater than or equal to 1"),
    "name of one dot": (topic(topicName="."), "a topic name must not be"),
    "name of two dots": (topic(topicName=".."), "a topic name must not be"),
    "name of an internal topic": (
        topic(topicName="__share_group_state"),
        "this internal topic of Kafka is not served",
    ),
    "state of groups that is not compacted": (
        topic(topicName="__consumer_offsets"),
        "this internal topic stores the state of groups or transactions",
    ),
    "name with a space": (topic(topicName="a b"), "spec.topicName in body should match"),
    "name too long": (topic(topicName="a" * 250), "may not be more than 249"),
    "object's name too long": (
        edited(topic(), "metadata.name", LONG_NAME),
        "the object's name exceeds Kafka's limit of 249 characters for a topic name",
    ),
    "bad disable policy": (
        tiered_topic(tiering={"enabled": False, "disablePolicy": "Keep"}),
        'supported values: "Retain", "Delete"',
    ),
    "bad deletion policy": (topic(deletionPolicy="Keep"), 'supported values: "Delete", "Orphan"'),
    # ------------------------------------------------------------------ Topic: configuration
    "unknown key": (
        topic(config={"retension.ms": "1", "flush.ms": "1"}),
        "retension.ms is not a configuration key of this object",
    ),
    "lags that contradict each other": (
        topic(config={"min.compaction.lag.ms": 7, "max.compaction.lag.ms": "6"}),
        "min.compaction.lag.ms 7 exceeds max.compaction.lag.ms 6. Lower it",
    ),
    "typed key enable": (
        topic(config={"remote.storage.enable": "true"}),
        "remote.storage.enable cannot be set in spec.config. Set spec.tiering.enabled instead",
    ),
    "typed key policy": (
        topic(config={"remote.log.disable.policy": "retain"}),
        "Set spec.tiering.disablePolicy",
    ),
    "typed key local time": (
        topic(config={"local.retention.ms": 1}),
        "local.retention.ms cannot be set in spec.config. Set spec.tiering.localRetention.time",
    ),
    "typed key local size": (
        topic(config={"local.retention.bytes": 1}),
        "Set spec.tiering.localRetention.size",
    ),
    "typed key copy.disable": (
        topic(config={"remote.log.copy.disable": "true"}),
        "spec.tiering.enabled: false with disablePolicy: Retain",
    ),
    "typed key delete.on.disable": (
        topic(config={"remote.log.delete.on.disable": "true"}),
        "spec.tiering.enabled: false with disablePolicy: Delete",
    ),
    "boolean without quotes": (
        topic(config={"unclean.leader.election.enable": True}),
        "spec.config.unclean.leader.election.enable",
    ),
    "value too long": (
        topic(config={"leader.replication.throttled.replicas": "1:1" + ",1:1" * 300}),
        "may not be more than 1024",
    ),
    "key that nothing serves": (
        topic(config={"file.delete.delay.ms": "1"}),
        "file.delete.delay.ms is not served: a file is deleted when its last reader closes it",
    ),
    "cluster's default that nothing serves": (
        cluster(config={"compression.type": "lz4"}),
        "compression.type is not served, except with the value producer: brokers store",
    ),
    "too many keys": (
        topic(config={f"key.{number}": "1" for number in range(65)}),
        "must have at most 64 items",
    ),
    # ------------------------------------------------------------------ Topic: tiering
    "tiering with compaction": (
        tiered_topic(config={"cleanup.policy": "delete,compact"}),
        "a compacted topic cannot be tiered",
    ),
    "local time above total": (
        tiered_topic(
            config={"retention.ms": 3600000},
            tiering={"enabled": True, "localRetention": {"time": "61m"}},
        ),
        "tiering.localRetention.time 61m exceeds retention.ms 3600000. Lower it, or raise",
    ),
    "local size above total": (
        tiered_topic(
            config={"retention.bytes": "1048575"},
            tiering={"enabled": True, "localRetention": {"size": "1Mi"}},
        ),
        "tiering.localRetention.size 1Mi exceeds retention.bytes 1048575. Lower it, or raise",
    ),
    "days": (
        tiered_topic(tiering={"enabled": True, "localRetention": {"time": "7d"}}),
        "must be a duration such as 168h, 1h30m or 500ms",
    ),
    "empty duration": (
        tiered_topic(tiering={"enabled": True, "localRetention": {"time": ""}}),
        "must be a duration such as 168h",
    ),
    "maximum lag below a second": (
        tiered_topic(tiering={"enabled": True, "maxLag": {"time": "999ms"}}),
        "maxLag.time must be at least 1s",
    ),
    "maximum lag of few bytes": (
        tiered_topic(tiering={"enabled": True, "maxLag": {"size": "2097151"}}),
        "maxLag.size must be at least 2Mi",
    ),
    "maximum lag as a key": (
        topic(config={"tidemark.remote.copy.max.lag.ms": "10000"}),
        "Set spec.tiering.maxLag.time",
    ),
    "days with a total": (
        tiered_topic(
            config={"retention.ms": "1"},
            tiering={"enabled": True, "localRetention": {"time": "7d"}},
        ),
        "must be a duration such as 168h, 1h30m or 500ms",
    ),
    "bad quantity": (
        tiered_topic(tiering={"enabled": True, "localRetention": {"size": "10GB"}}),
        "must be a whole number of bytes such as 10Gi",
    ),
    "fraction": (
        tiered_topic(tiering={"enabled": True, "localRetention": {"size": "1.5Gi"}}),
        "must be a whole number of bytes such as 10Gi",
    ),
    "quantity above 64 bits": (
        tiered_topic(
            config={"retention.bytes": "1"},
            tiering={"enabled": True, "localRetention": {"size": "999999999999999999Pi"}},
        ),
        "must be a whole number of bytes such as 10Gi",
    ),
    # ------------------------------------------------------------------ Broker
    "negative node id": (broker(nodeId=-1), "should be greater than or equal to 0"),
    "pod without AppArmor": (
        broker_in_a_pod(
            podAnnotations={"container.apparmor.security.beta.kubernetes.io/broker": "unconfined"}
        ),
        "the operator sets the security context of the pod",
    ),
    "rack of two lines": (broker(rack="a\nnode.id=2"), "spec.rack"),
    "broker in a pod that says its rack itself": (
        broker_in_a_pod(config={"rack": "b"}),
        "rack is set by the operator",
    ),
    "racks of two lines": (
        cluster(brokers={"replicas": 1, "racks": ["a\nb"], "template": broker_pod()}),
        "spec.brokers.racks",
    ),
    "broker in a pod without a pod": (
        broker(workload="Pod"),
        "pod is required with workload Pod and must be unset with any other workload",
    ),
    "broker elsewhere with a pod": (
        broker(pod=broker_pod()),
        "pod is required with workload Pod and must be unset with any other workload",
    ),
    "name that is none of a pod's Service": (
        edited(broker_in_a_pod(), "metadata.name", "a.b"),
        "the name of a Broker with workload Pod has at most 52",
    ),
    "listener with TLS without a certificate": (
        broker_in_a_pod(listeners=[{"name": "TLS", "port": 9093, "protocol": "SASL_SSL"}]),
        "a listener with TLS requires tlsSecretRef",
    ),
    "listener on the port of the metrics": (
        broker_in_a_pod(listeners=[{"name": "A", "port": 8080, "protocol": "PLAINTEXT"}]),
        "listeners, replicationPort and metricsPort must not share a port",
    ),
    "two listeners on one port": (
        broker_in_a_pod(
            listeners=[{"name": name, "port": 1, "protocol": "PLAINTEXT"} for name in "AB"]
        ),
        "two listeners have the same port",
    ),
    "key that the operator sets": (
        broker_in_a_pod(config={"node.id": "7"}),
        "node.id is set by the operator",
    ),
    "value of two lines": (
        broker_in_a_pod(config={"num.io.threads": "1\nnode.id=2"}),
        "a key has only characters of a configuration name, and a value has no line break",
    ),
    "no amount": (
        broker_in_a_pod(resources={"limits": {"cpu": "much"}}),
        "must be a quantity such as 500m",
    ),
    "name of a node's address at a load balancer": (
        broker_in_a_pod(
            listeners=[external_listener(type="LoadBalancer", nodeAddress="InternalIP")]
        ),
        "nodeAddress is supported only with type NodePort",
    ),
    "class of a load balancer on ports of nodes": (
        broker_in_a_pod(listeners=[external_listener(loadBalancerClass="example.com/fast")]),
        "loadBalancerClass and loadBalancerSourceRanges are supported only with type LoadBalancer",
    ),
    "advertised port without a host": (
        broker_in_a_pod(listeners=[external_listener(port=443)]),
        "port requires host",
    ),
    "one host for all brokers": (
        broker_in_a_pod(listeners=[external_listener(type="LoadBalancer", host="example.com")]),
        "Put {nodeId} into host",
    ),
    "host that is an address with a port, and more": (
        broker_in_a_pod(listeners=[external_listener(host="b,PLAINTEXT://evil")]),
        "external.host",
    ),
    "host with a port behind it": (
        broker_in_a_pod(listeners=[external_listener(host="b{nodeId}.example.com:443")]),
        "host must not contain a port",
    ),
    "a broker's settings twice": (
        broker_in_a_pod(listeners=[external_listener(brokers=[{"nodeId": 1}, {"nodeId": 1}])]),
        "Duplicate value",
    ),
    "names that are too long for a Service": (
        edited(
            broker_in_a_pod(listeners=[external_listener("ABCDEFGHIJKLM")]),
            "metadata.name",
            "b" * 50,
        ),
        "the names of the Broker and of an external listener have at most",
    ),
    "names that are too long for the Service of a cluster": (
        edited(
            cluster(
                brokers={
                    "replicas": 1,
                    "template": broker_pod(listeners=[external_listener("ABCDEFGHIJKLM")]),
                }
            ),
            "metadata.name",
            "c" * 40,
        ),
        "the names of the Cluster and of an external listener have at most",
    ),
    "broker without workload": (
        edited(broker(), "spec.workload", ...),
        "spec.workload: Required value",
    ),
    # ------------------------------------------------------------------ Cluster
    "no brokers at all": (
        cluster(brokers={"replicas": 0, "template": broker_pod()}),
        "should be greater than or equal to 1",
    ),
    "two tiers": (
        cluster(remoteStorage={**s3_storage(), "filesystem": {"path": "/a"}}),
        "remoteStorage needs exactly one of s3, gcs, azure and filesystem",
    ),
    "two clouds": (
        cluster(remoteStorage={**gcs_storage(), **azure_storage()}),
        "remoteStorage needs exactly one of s3, gcs, azure and filesystem",
    ),
    "container with two hyphens": (
        cluster(remoteStorage=azure_storage(containers=["a--b"])),
        "should match",
    ),
    "account with a hyphen": (
        cluster(remoteStorage=azure_storage(account="my-account")),
        "should match",
    ),
    "bucket in upper case": (
        cluster(remoteStorage=gcs_storage(buckets=["Bucket"])),
        "should match",
    ),
    "no tier in remoteStorage": (
        cluster(remoteStorage={}),
        "remoteStorage needs exactly one of s3, gcs, azure and filesystem",
    ),
    "relative folder": (
        cluster(remoteStorage={"filesystem": {"path": "tier"}}),
        "should match '^/'",
    ),
    "no bucket": (cluster(remoteStorage=s3_storage(buckets=[])), "should have at least 1 items"),
    "bucket twice": (
        cluster(remoteStorage=s3_storage(buckets=["one-bucket", "one-bucket"])),
        "Duplicate value",
    ),
    "a Secret's name that is a path": (
        cluster(
            remoteStorage=s3_storage(credentialsSecretRef={"name": "../../kube-system/secrets/x"})
        ),
        "credentialsSecretRef.name",
    ),
    "endpoint with credentials": (
        cluster(remoteStorage=s3_storage(endpoint="http://user:word@minio:9000")),
        "spec.remoteStorage.s3.endpoint",
    ),
    "endpoint with a path": (
        cluster(remoteStorage=s3_storage(endpoint="http://minio:9000/admin")),
        "spec.remoteStorage.s3.endpoint",
    ),
    "bucket with a path": (
        cluster(remoteStorage=s3_storage(buckets=["../other"])),
        "spec.remoteStorage.s3.buckets",
    ),
    "prefix that leads upward": (
        cluster(remoteStorage=s3_storage(prefix="a/../b")),
        "a prefix must not contain a folder named",
    ),
    "endpoint that is no URL": (
        cluster(remoteStorage=s3_storage(endpoint="minio:9000")),
        "should match '^https?:",
    ),
    "prefix with a slash at its end": (
        cluster(remoteStorage=s3_storage(prefix="a/")),
        "spec.remoteStorage.s3.prefix",
    ),
    "variable that overrides the configuration": (
        broker_in_a_pod(env=[{"name": "TIDEMARK_LISTENERS", "value": "x"}]),
        "the variable is reserved for the operator",
    ),
    "region with a host name": (
        cluster(remoteStorage=s3_storage(region="x.example/")),
        "spec.remoteStorage.s3.region",
    ),
    "role without an account": (
        cluster(remoteStorage=s3_storage(roleArn="tier")),
        "spec.remoteStorage.s3.roleArn",
    ),
    "unknown encryption": (
        cluster(remoteStorage=s3_storage(encryption="AES256")),
        'supported values: "SSE-S3", "SSE-KMS"',
    ),
    "key of KMS without SSE-KMS": (
        cluster(remoteStorage=s3_storage(encryption="SSE-S3", kmsKeyId="k")),
        "kmsKeyId needs encryption SSE-KMS",
    ),
    "archive as a storage class": (
        cluster(remoteStorage=s3_storage(storageClass="GLACIER")),
        "objects of this class cannot be read at once",
    ),
    "unknown cluster key": (
        cluster(config={"zookeeper.connect": "x"}),
        "zookeeper.connect is not a configuration key of this object",
    ),
    "bad cluster policy": (
        cluster(config={"remote.log.disable.policy": "keep"}),
        "remote.log.disable.policy must be one of retain, delete",
    ),
    "bad custom metadata limit": (
        cluster(config={"remote.log.metadata.custom.metadata.max.bytes": "-1"}),
        "remote.log.metadata.custom.metadata.max.bytes must be a whole number",
    ),
    "bad flag": (
        cluster(config={"enable.under.replicated.topic.creation": "yes"}),
        "enable.under.replicated.topic.creation must be 'true' or 'false', in quotes",
    ),
    "cluster name too long": (
        edited(cluster(), "metadata.name", "c" * 49),
        "at most 48 characters",
    ),
    # ------------------------------------------------------------------ RecordDeletion
    "neither all nor partitions": (
        record_deletion(),
        "exactly one of all and partitions is required",
    ),
    "both all and partitions": (
        record_deletion(all={"beforeOffset": -1}, partitions=[{"partition": 0, "beforeOffset": 1}]),
        "exactly one of all and partitions is required",
    ),
    "partition without a point": (
        record_deletion(partitions=[{"partition": 0}]),
        "exactly one of beforeOffset and beforeTime is required",
    ),
    "partition with two points": (
        record_deletion(
            partitions=[
                {"partition": 0, "beforeOffset": 1, "beforeTime": "2013-07-01T00:00:00Z"},
            ]
        ),
        "exactly one of beforeOffset and beforeTime is required",
    ),
    "partition twice": (
        record_deletion(
            partitions=[
                {"partition": 0, "beforeOffset": 1},
                {"partition": 0, "beforeOffset": 2},
            ]
        ),
        "Duplicate value",
    ),
    "empty partitions": (record_deletion(partitions=[]), "should have at least 1 items"),
    "negative offset": (
        record_deletion(partitions=[{"partition": 0, "beforeOffset": -2}]),
        "should be greater than or equal to -1",
    ),
    "an offset for all": (
        record_deletion(all={"beforeOffset": 5}),
        "beforeOffset for all partitions must be -1",
    ),
    "a time that Kafka takes for the log's end": (
        record_deletion(all={"beforeTime": "1969-12-31T23:59:59.999Z"}),
        "timestamps before 1970 are not supported",
    ),
    "a time before 1970 for one partition": (
        record_deletion(partitions=[{"partition": 0, "beforeTime": "1970-01-01T00:59:59+01:00"}]),
        "timestamps before 1970 are not supported",
    ),
    "the year 1 east of Greenwich": (
        record_deletion(all={"beforeTime": "0001-01-01T00:00:00+14:00"}),
        "timestamps before 1970 are not supported",
    ),
    "leader epoch of the high watermark": (
        record_deletion(partitions=[{"partition": 0, "beforeOffset": -1, "leaderEpoch": 3}]),
        "leaderEpoch requires a beforeOffset of 0 or more",
    ),
    "leader epoch of a time": (
        record_deletion(
            partitions=[{"partition": 0, "beforeTime": "2013-07-01T00:00:00Z", "leaderEpoch": 3}]
        ),
        "leaderEpoch requires a beforeOffset of 0 or more",
    ),
    "all without a point": (
        record_deletion(all={}),
        "exactly one of beforeOffset: -1 and beforeTime is required",
    ),
    "time without a zone": (
        record_deletion(all={"beforeTime": "2013-07-01T00:00:00"}),
        "must be of type date-time",
    ),
    "TTL with everything": (
        record_deletion(all={"beforeOffset": -1}, ttlAfterFinished="1h"),
        "ttlAfterFinished cannot be combined with beforeOffset -1",
    ),
    "TTL with everything of one partition": (
        record_deletion(
            partitions=[
                {"partition": 0, "beforeOffset": 7},
                {"partition": 1, "beforeOffset": -1},
            ],
            ttlAfterFinished="1h",
        ),
        "ttlAfterFinished cannot be combined with beforeOffset -1",
    ),
    "bad timeout": (
        record_deletion(all={"beforeOffset": -1}, timeout="soon"),
        "must be a duration such as 168h",
    ),
    # ------------------------------------------------------------------ Export
    "export at no time": (
        export(continuous=None),
        "an Export needs exactly one of schedule and continuous",
    ),
    "export at two times": (
        export(schedule="@daily", continuous={}),
        "an Export needs exactly one of schedule and continuous",
    ),
    **{
        f"export at {when!r}": (export(schedule=when), "spec.schedule in body should match")
        for when in ("daily", "* * * *", "* * * * * *", "@reboot", "TZ=UTC * * * * *", "@daily ")
    },
    "export in a time zone without a schedule": (
        export(timeZone="UTC"),
        "timeZone requires schedule",
    ),
    "export that removes young orphans": (
        export(maintenance={"removeOrphans": {"olderThan": "23h"}}),
        "olderThan must be at least 24h",
    ),
    "export with maintenance at no time": (
        export(maintenance={"schedule": "daily"}),
        "spec.maintenance.schedule in body should match",
    ),
    "export whose maintenance may not pause it": (
        export(maintenance={"maxPause": "0s"}),
        "maxPause must be at least 1s",
    ),
    "export that deletes without brokers": (
        export(deleteAfterCommit=True, source={"tier": "remote"}),
        "deleteAfterCommit requires brokers and cannot be combined with source.tier remote",
    ),
    "export without rest": (
        export(continuous={"interval": "999ms"}),
        "interval must be at least 1s",
    ),
    "export every now and then": (
        export(continuous={"interval": "often"}),
        "must be a duration such as 168h",
    ),
    "export with a long name": (
        edited(export(), "metadata.name", "x" * 53),
        "the name of an Export has at most 52 characters",
    ),
    "export without a warehouse": (
        edited(export(), "spec.table.warehouse", ...),
        "the location of the tables is missing",
    ),
    "export to a catalog of folders without a warehouse": (
        export(table={"warehouse": None, "catalog": {"type": "hadoop"}}),
        "the location of the tables is missing",
    ),
    **{
        f"export with executors {executors}": (export(job={"executors": executors}), message)
        for executors, message in (
            ({}, "set instances, or max and optionally min"),
            ({"instances": 2, "max": 4}, "set instances, or max and optionally min"),
            ({"min": 5, "max": 4}, "min must not be greater than max"),
            ({"instances": 0}, "should be greater than or equal to 1"),
            ({"instances": 1, "memory": "2g"}, "memory in body should match"),
        )
    },
    "export with executors and a volume": (
        export(
            job={
                "executors": {"instances": 2},
                "volumes": [{"claimName": "lake", "mountPath": "/lake"}],
            }
        ),
        "executors do not mount volumes",
    ),
    "export with a SparkApplication without executors": (
        export(job={"sparkApplication": {}}),
        "sparkApplication needs executors",
    ),
    "export with a SparkApplication and resources": (
        export(
            job={
                "executors": {"max": 8},
                "sparkApplication": {},
                "resources": {"limits": {"memory": "1Gi"}},
            }
        ),
        "Spark sets the resources of the pod",
    ),
    "export to Delta Lake with a catalog": (
        export(table={"format": "delta", "catalog": {"type": "hadoop"}}),
        "format delta does not support catalog, catalogSecrets, keyBuckets",
    ),
    "export to Delta Lake with buckets": (
        export(table={"format": "delta", "keyBuckets": 4}),
        "format delta does not support catalog, catalogSecrets, keyBuckets",
    ),
    "export partitioned in two ways": (
        export(table={"partition": "day", "partitionBy": [{"column": "key"}]}),
        "partitionBy cannot be combined with partition and keyBuckets",
    ),
    **{
        f"export partitioned by {transform}": (
            export(table={"partitionBy": [{"column": "key", "transform": transform}]}),
            "spec.table.partitionBy[0].transform in body should match",
        )
        for transform in ("bucket", "bucket[0]", "bucket[1", "days", "identity[2]", "zorder")
    },
    "export with a tag of each continuous run": (
        export(table={"runRef": {"prefix": "nightly"}}),
        "table.runRef requires schedule, because a continuous run has no end",
    ),
    "export to Delta Lake with tags": (
        export(schedule="@daily", table={"format": "delta", "runRef": {"prefix": "nightly"}}),
        "format delta does not support catalog, catalogSecrets, keyBuckets",
    ),
    "export sorted by nothing": (
        export(table={"sortBy": [{"column": "key", "transform": "void"}]}),
        "spec.table.sortBy[0].transform in body should match",
    ),
    "export to Delta Lake without a warehouse": (
        export(table={"format": "delta", "warehouse": None}),
        "the location of the tables is missing",
    ),
    "export to another format": (
        export(table={"format": "hudi"}),
        'Unsupported value: "hudi"',
    ),
    "export with its warehouse in the wrong place": (
        export(table={"catalog": {"warehouse": "/other"}}),
        "warehouse cannot be a catalog property",
    ),
    **{
        f"export with {name} in its manifest": (
            export(table={"catalog": {name: "secret"}}),
            "a credential must not be in the manifest",
        )
        for name in ("token", "credential", "jdbc.password", "s3.secret-access-key")
    },
    "export to a table without a namespace": (
        export(table={"name": "flights"}),
        "spec.table.name in body should match",
    ),
    "export to a table that is code": (
        export(table={"name": "db.x; DROP TABLE y"}),
        "spec.table.name in body should match",
    ),
    "export of nothing": (
        export(topicRef=None),
        "an Export needs exactly one of topicRef and topics",
    ),
    "export of one topic and of many": (
        export(topics={"pattern": "a"}, table={"name": "db.{topic}"}),
        "an Export needs exactly one of topicRef and topics",
    ),
    "export of many topics by name and by pattern": (
        export(topicRef=None, topics={"pattern": "a", "names": ["a"]}, table={"name": "a.{topic}"}),
        "topics needs exactly one of names, pattern and selector",
    ),
    "export of no topics": (
        export(topicRef=None, topics={}, table={"name": "a.{topic}"}),
        "topics needs exactly one of names, pattern and selector",
    ),
    "export of many topics to one table": (
        export(topicRef=None, topics={"pattern": "a.*"}),
        "with topics, table.name and table.deadLetters must contain {topic}",
    ),
    "export of one topic to a template": (
        export(table={"name": "lake.{topic}"}),
        "With topicRef they must not",
    ),
    "export of many topics to one table of dead letters": (
        export(
            topicRef=None,
            topics={"pattern": "a.*"},
            table={
                "name": "lake.{topic}",
                "deadLetters": "lake.letters",
                "schema": {"format": "json", "fields": "id BIGINT"},
            },
        ),
        "table.deadLetters must contain {topic}",
    ),
    "export to a template of something else": (
        export(topicRef=None, topics={"pattern": "a"}, table={"name": "lake.{topic}.{partition}"}),
        "spec.table.name in body should match",
    ),
    "export with dead letters of records": (
        export(table={"deadLetters": "db.dlq"}),
        "deadLetters requires a schema",
    ),
    **{
        f"export with {'/'.join(schema) or 'nothing'} of {name}": (
            export(table={"schema": {"format": name, **schema}}),
            "format json requires fields",
        )
        for name, schema in (
            ("json", {}),
            ("json", {"definition": "{}"}),
            ("avro", {"fields": "id BIGINT"}),
            ("avro", {"definition": "{}", "file": "/a.avsc"}),
            ("protobuf", {}),
        )
    },
    "export with a message of Avro": (
        export(table={"schema": {"format": "avro", "definition": "{}", "message": "m"}}),
        "message is supported only with format protobuf",
    ),
    "export with a registry's password in its manifest": (
        export(
            table={
                "schema": {
                    "format": "avro",
                    "registry": {"url": "http://r:1", "options": {"password": "x"}},
                }
            }
        ),
        "registry options are",
    ),
    "export with a password in an address": (
        export(table={"schema": {"format": "avro", "registry": {"url": "http://a:b@r:1"}}}),
        "registry.url in body should match",
    ),
    "export with its dead letters among its rows": (
        export(
            table={"deadLetters": "db.flights", "schema": {"format": "json", "fields": "id INT"}}
        ),
        "deadLetters must not be the target table",
    ),
    "export with a property that is code": (
        export(table={"properties": {"a": "' )"}}),
        "a property name has only letters, digits, dots, underscores and dashes",
    ),
    "export with an option of the operator's": (
        export(source={"options": {"endingOffsets": "latest"}}),
        "endingOffsets cannot be set here",
    ),
    "export with a password in its manifest": (
        export(source={"options": {"kafka.sasl.password": "x"}}),
        "kafka.sasl.password cannot be set here",
    ),
    "export of a user that proves nothing": (
        export(source={"userRef": {"name": "exporter"}}),
        "userRef requires kafka.security.protocol SSL, SASL_PLAINTEXT or SASL_SSL in options",
    ),
    "export from two addresses": (
        export(source={"listener": "A", "bootstrap": "a:1"}),
        "listener and bootstrap cannot be combined",
    ),
    "export with Spark's master": (
        export(job={"conf": {"spark.master": "yarn"}}),
        "spark.master is set by the operator",
    ),
    "export with another catalog": (
        export(job={"conf": {"spark.sql.catalog.lake.cache-enabled": "true"}}),
        "spark.sql.catalog.lake.cache-enabled is set by the operator",
    ),
    "export with an agent of the JVM": (
        export(job={"conf": {"spark.driver.extraJavaOptions": "-javaagent:/x.jar"}}),
        "spark.driver.extraJavaOptions loads code",
    ),
    "export with a plugin in a Secret": (
        export(job={"confSecrets": [{"name": "spark.plugins", **VALUE}]}),
        "loads code or changes the pod",
    ),
    "cluster that allows a place out of a folder": (
        cluster(exports={"warehouses": ["/lake/../srv"]}),
        "a location must not contain a folder named",
    ),
    "export with a setting of the JVM": (
        export(job={"conf": {"java.home": "x"}}),
        "a Spark configuration key starts with spark",
    ),
    "export with a volume over the program": (
        export(job={"volumes": [{"claimName": "lake", "mountPath": "/app/tidemark"}]}),
        "mountPath must not be in the image's own directories:",
    ),
    "export with a volume that goes up": (
        export(job={"volumes": [{"claimName": "lake", "mountPath": "/lake/../app"}]}),
        "mountPath must not be in the image's own directories:",
    ),
    # ------------------------------------------------------------------ PartitionSlice
    "slice without an epoch": (
        edited(partition_slice(), "controllerEpoch", ...),
        "controllerEpoch: Required value",
    ),
}


# Tests write None for a field that must be missing, so that base fields can be removed.
def _without_nulls(body: Any) -> Any:
    if not isinstance(body, dict):
        return body
    return {key: _without_nulls(value) for key, value in body.items() if value is not None}


@pytest.mark.parametrize("body", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_accepted(api: AdmissionApi, body: Object) -> None:
    # Created and deleted at once, since the tests share a namespace.
    created = api.create(_without_nulls(body))
    api.delete(created)


@pytest.mark.parametrize(("body", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(api: AdmissionApi, body: Object, message: str) -> None:
    with pytest.raises(AdmissionRefused) as refusal:
        api.create(_without_nulls(body))
    assert message in str(refusal.value)


def test_all_errors_are_reported_at_once(api: AdmissionApi) -> None:
    # Three independent errors in one object.
    body = topic(config={"flush.ms": "x", "nonsense": "1", "cleanup.policy": "maybe"})
    with pytest.raises(AdmissionRefused) as refusal:
        api.create(body)
    message = str(refusal.value)
    assert "flush.ms must be a whole number, at least 0" in message
    assert "nonsense is not a configuration key of this object" in message
    assert "cleanup.policy must be delete, compact, or both separated by a comma" in message


@pytest.mark.parametrize(
    ("kind", "body", "condition"),
    [
        ("Topic", topic(), "Ready"),
        ("Broker", broker(), "Ready"),
        ("Cluster", cluster(), "Ready"),
        ("RecordDeletion", record_deletion(all={"beforeOffset": -1}), "Succeeded"),
        ("Export", export(), "Ready"),
        ("User", manifest("User", spec={"clusterRef": {"name": "demo"}}), "Ready"),
    ],
)
def test_new_object_has_its_condition_unknown(
    api: AdmissionApi, kind: str, body: Object, condition: str
) -> None:
    # The sender's status is ignored on creation; the CRD's default replaces it.
    created = api.create({**body, "status": {"observedGeneration": 9}})
    expected: dict[str, Any] = {
        "type": condition,
        "status": "Unknown",
        "reason": "Pending",
        "message": "waiting for the operator",
        "lastTransitionTime": "1970-01-01T00:00:00Z",
    }
    status = api.get(created)["status"]
    assert status["conditions"] == [expected], kind
    # Tools that follow kstatus must not take a new object for a finished one.
    assert kstatus.verdict(api.get(created)) is kstatus.StatusVerdict.IN_PROGRESS
    api.delete(created)


def test_unknown_field_is_dropped_by_the_server_and_reported_to_strict_clients(
    api: AdmissionApi,
) -> None:
    """kubectl requests strict validation; a lenient client gets the field pruned."""
    # A misspelt field.
    created = api.create(manifest("Topic", spec={**topic()["spec"], "partitons": 3}))
    assert "partitons" not in created["spec"]
    api.delete(created)
