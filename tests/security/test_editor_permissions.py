"""A holder of the chart's roles ``tidemark-view`` and ``tidemark-edit``, and of no other, gets no
Secret that its owner did not offer: on the real API server, with its RBAC and our CRDs.

Every attack is an object that this person may write. It is refused at admission, or by a condition,
and then no Job exists that could hold a Secret or send one away.
"""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm import BASE_CHART
from tests.integration.operator import jobs
from tests.integration.operator.broker_peer import BrokerPeer
from tests.integration.operator.cluster_world import ClusterWorld
from tidemark_operator.certificates.certificate_stores import CERTIFICATES
from tidemark_operator.kube.access import KubernetesAccess
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import Forbidden, Invalid, KubeError
from tidemark_operator.kube.kinds import (
    BROKER,
    CLUSTER,
    EXPORT,
    JOB,
    POD,
    SECRET,
    TOPIC,
    USER,
    Json,
)
from tidemark_operator.resources.export_policy import is_code
from tidemark_operator.resources.names import OFFERED_ANNOTATION

pytestmark = pytest.mark.full

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
MARK = "not-to-be-had"
#: Every key that a field of ours reads, with a value that must not leave.
KEYS = (
    *("ca.crt", "tls.crt", "tls.key", "token", "password", "username", "user.crt", "user.key"),
    *("accessKeyId", "secretAccessKey"),
)
POLICY = {"endpoints": ["https://catalog.example/iceberg"], "warehouses": ["s3a://lake", "/lake"]}


def value(secret: str, name: str = "token", key: str = "token") -> Json:
    return {"name": name, "secretKeyRef": {"name": secret, "key": key}}


def rest(uri: str = "https://catalog.example/iceberg", **more: Any) -> Json:
    return {"catalog": {"type": "rest", "uri": uri}, **more}


def avro(**registry: Any) -> Json:
    return {"schema": {"format": "avro", "registry": registry}}


def source(user: str, **more: Any) -> Json:
    return {
        "userRef": {"name": user},
        "options": {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"},
        **more,
    }


REGISTRY = "https://catalog.example/iceberg/registry"
#: Parts of an Export's spec, by what is tried. VICTIM is each Secret that is not offered.
NAMED: dict[str, Json] = {
    "secret of a catalog": {"table": rest(catalogSecrets=[value("VICTIM")])},
    "secret of Spark": {
        "job": {"confSecrets": [value("VICTIM", "spark.hadoop.fs.s3a.secret.key")]}
    },
    "secret of a registry": {"table": avro(url=REGISTRY, secrets=[value("VICTIM")])},
    "certificate for a registry": {
        "table": avro(url=REGISTRY, certificateSecretRef={"name": "VICTIM"})
    },
    "authority of a registry": {
        "table": avro(url=REGISTRY, trustedSecretRef={"name": "VICTIM", "key": "ca.crt"})
    },
    "authority of brokers": {"source": {"trustedSecretRef": {"name": "VICTIM", "key": "ca.crt"}}},
    "pull secret": {"job": {"imagePullSecrets": [{"name": "VICTIM"}]}},
    "user of the secret's name": {"source": source("VICTIM", tier="auto")},
}
VICTIMS = ("demo-ca", "application", "tier", "broker-1-tls", "offered-to-users", "bob")
OFFERED = {"table": rest(catalogSecrets=[value("offered")])}
#: Attacks on what is offered, or on what every job has: by code, or by another address.
CARRIED: dict[str, Json] = {
    "image": {**OFFERED, "job": {"image": "evil.example/steal:1"}},
    "image of a registry that begins alike": {"job": {"image": f"{jobs.IMAGE}-evil"}},
    "catalog elsewhere": {
        "table": rest("https://evil.example/", catalogSecrets=[value("offered")])
    },
    "catalog of a name that begins alike": {
        "table": rest("https://catalog.example.evil.example/iceberg")
    },
    "catalog with a user in its address": {
        "table": rest("https://catalog.example@evil.example/iceberg")
    },
    "catalog out of its path": {"table": rest("https://catalog.example/iceberg/../other")},
    "catalog out of its path, escaped": {
        "table": rest("https://catalog.example/iceberg/%2e%2e/other")
    },
    "driver of a database": {
        "table": {"catalog": {"type": "jdbc", "uri": "jdbc:h2:mem:;INIT=RUNSCRIPT FROM 'x'"}}
    },
    "class of a catalog": {"table": {"catalog": {"catalog-impl": "evil.Catalog"}}},
    "class of a catalog's files": {"table": rest(catalog={"type": "rest", "io-impl": "evil.IO"})},
    "another token server": {
        "table": {
            "catalog": {
                "type": "rest",
                "uri": "https://catalog.example/iceberg",
                "oauth2-server-uri": "https://evil.example/token",
            },
            "catalogSecrets": [value("offered", "credential")],
        }
    },
    "address in a Secret": {"table": {"catalogSecrets": [value("offered", "uri")]}},
    "address in a Secret beside one that is allowed": {
        "table": rest(catalogSecrets=[value("offered", "uri")])
    },
    "secret where errors name it": {"job": {"confSecrets": [value("offered", "spark.log.level")]}},
    "type of a catalog from a Secret": {"table": {"catalogSecrets": [value("offered", "type")]}},
    "variable of the job in a setting": {
        "job": {"conf": {"spark.log.level": "${env:TIDEMARK_SECRET_1}"}}
    },
    "variable of the job as a user of files": {
        "job": {"conf": {"spark.hadoop.fs.s3a.access.key": "${env.TIDEMARK_SECRET_1}"}}
    },
    "variable of the job in the table": {
        "table": {"properties": {"comment": "${env:TIDEMARK_SECRET_1}"}}
    },
    "variable of the job in a catalog": {"table": rest(warehouse="env:TIDEMARK_SECRET_1")},
    "region that is a host": {"table": {"catalog": {"client.region": "evil.example/#"}}},
    "prefix out of a catalog's path": {
        "table": {
            "catalog": {
                "type": "rest",
                "uri": "https://catalog.example/iceberg",
                "prefix": "../../other",
            }
        }
    },
    "store of files": {"job": {"conf": {"spark.hadoop.fs.s3a.endpoint": "https://evil.example"}}},
    "registry elsewhere": {"table": avro(url="https://evil.example", secrets=[value("offered")])},
    "registry that hands out credentials": {"table": avro(url="http://169.254.169.254/latest")},
    "brokers elsewhere": {"source": source("alice", bootstrap="evil.example:9093")},
    "jar": {"job": {"jars": ["https://evil.example/a.jar"]}},
    "jar of a volume": {
        "job": {"jars": ["/lake/a.jar"], "volumes": [{"claimName": "c", "mountPath": "/lake"}]}
    },
    "volume of a broker": {
        "job": {"volumes": [{"claimName": "data-broker-1-0", "mountPath": "/lake"}]}
    },
    "account": {"job": {"serviceAccountName": "tidemark-operator"}},
    "annotation that mounts secrets": {
        "job": {"podAnnotations": {"vault.hashicorp.com/agent-inject": "true"}}
    },
    "label of another Service": {"job": {"podLabels": {"app": "application"}}},
    "location of a table": {"table": {"properties": {"write.data.path": "s3a://evil/"}}},
    "class of a table": {"table": {"properties": {"write.location-provider.impl": "evil.Place"}}},
    "warehouse elsewhere": {"table": {"warehouse": "s3a://lake-evil/x"}},
    **{
        f"setting {key}": {**OFFERED, "job": {"conf": {key: "evil"}}}
        for key in (
            "spark.driver.extraJavaOptions",
            "spark.driver.defaultJavaOptions",
            "spark.executor.extraJavaOptions",
            "spark.driver.extraClassPath",
            "spark.driver.extraLibraryPath",
            "spark.driver.userClassPathFirst",
            "spark.jars.packages",
            "spark.jars.repositories",
            "spark.files",
            "spark.archives",
            "spark.plugins",
            "spark.extraListeners",
            "spark.kubernetes.driver.podTemplateFile",
            "spark.kubernetes.driver.secrets.demo-ca",
            "spark.pyspark.python",
            "spark.pyspark.driver.python",
            "spark.python.daemon.module",
            "spark.python.worker.module",
            "spark.submit.pyFiles",
            "spark.executorEnv.PYTHONPATH",
            "spark.sql.extensions",
            "spark.sql.catalog.other",
            "spark.sql.queryExecutionListeners",
            "spark.sql.streaming.streamingQueryListeners",
            "spark.sql.adaptive.customCostEvaluatorClass",
            "spark.sql.hive.metastore.jars",
            "spark.serializer",
            "spark.kryo.registrator",
            "spark.hadoop.fs.s3a.impl",
            "spark.hadoop.fs.s3a.aws.credentials.provider",
            "spark.hadoop.hadoop.security.credential.provider.path",
            "spark.hadoop.fs.defaultFS",
            "spark.metrics.conf.*.sink.x.class",
            "spark.driver.resource.gpu.discoveryScript",
            "spark.ui.filters",
            "spark.not.heard.of",
        )
    },
}


#: For them the schema itself says so.
AT_ADMISSION = {
    what for what, part in CARRIED.items() if any(map(is_code, part.get("job", {}).get("conf", {})))
}


def made_of(part: Json, victim: str = "") -> Json:
    return dict(json.loads(json.dumps(part).replace("VICTIM", victim)))


@pytest.fixture
async def editor(world: ClusterWorld, tmp_path: Path) -> AsyncIterator[KubeApi]:
    """Yield an API client that has only these roles in the namespace."""
    # The roles as the chart renders them, without its conditionals.
    text = (BASE_CHART / "templates" / "roles.yaml").read_text("utf-8")
    roles = yaml.safe_load_all("\n".join(x for x in text.splitlines() if not x.startswith("{{")))
    home = f"/namespaces/{world.namespace}"
    meta = {"name": "editor"}
    await world.api._call("POST", f"/api/v1{home}/serviceaccounts", body={"metadata": meta})
    subject = {"kind": "ServiceAccount", "name": "editor", "namespace": world.namespace}
    for role in roles:
        name = role["metadata"]["name"]
        if name not in ("tidemark-view", "tidemark-edit"):
            continue
        # Namespaced Roles: this person has rights in one namespace only.
        for kind, body in (
            ("Role", {"metadata": {"name": name}, "rules": role["rules"]}),
            (
                "RoleBinding",
                {
                    "metadata": {"name": name},
                    "roleRef": {
                        "apiGroup": "rbac.authorization.k8s.io",
                        "kind": "Role",
                        "name": name,
                    },
                    "subjects": [subject],
                },
            ),
        ):
            path = f"{_RBAC}{home}/{kind.lower()}s"
            made = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, **body}
            await world.api._call("POST", path, body=made)
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"/api/v1{home}/serviceaccounts/editor/token"
    token = (await world.api._call("POST", path, body=asked))["status"]["token"]
    # The same API server with the token of that account in place of the administrator's
    # certificate.
    config = yaml.safe_load(world.kubeconfig.read_text("utf-8"))
    config["users"][0]["user"] = {"token": token}
    (tmp_path / "editor").write_text(yaml.safe_dump(config), "utf-8")
    async with await KubeApi.open(KubernetesAccess(tmp_path / "editor")) as api:
        yield api


async def put_secret(world: ClusterWorld, name: str, offered: str = "", **meta: Any) -> None:
    annotations = {OFFERED_ANNOTATION: offered} if offered else {}
    body = {
        "metadata": {"name": name, "annotations": annotations, **meta},
        "data": {key: base64.b64encode(MARK.encode()).decode() for key in KEYS},
    }
    await world.api.create(SECRET, world.namespace, body)


@pytest.fixture
async def peer(world: ClusterWorld) -> BrokerPeer:
    """Create a Cluster with a policy, a Topic, two Users, and Secrets of other owners."""
    # A policy exists, so each refusal below is a decision and not the lack of a policy.
    await world.create_cluster()
    await world.api.merge_patch(CLUSTER, world.namespace, "demo", {"spec": {"exports": POLICY}})
    operator = await jobs.start_operator(world)
    peer = await world.start_broker(1, operator)
    await world.create_topic("t", replicas=1)
    await world.condition(TOPIC, "t", "Ready", "True")
    # Secrets that are protected by their labels, by the lack of an offer, or by an offer for
    # another kind. Only "offered" is for an Export.
    await put_secret(world, "demo-ca", "Export,User,Cluster", labels=CERTIFICATES.labels)
    await put_secret(world, "broker-1-tls", "Export", labels=CERTIFICATES.labels)
    await put_secret(world, "application")
    await put_secret(world, "tier", "Cluster")
    await put_secret(world, "offered-to-users", "User")
    await put_secret(world, "offered", "Export")
    for name in ("alice", "bob"):
        await world.create(USER, name)
        await world.condition(USER, name, "Ready", "True")
    return peer


def secrets_of(job: Json) -> set[str]:
    """Return all Secrets that a Job's pod can read."""
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    found = {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    found |= {image_pull_secret["name"] for image_pull_secret in pod.get("imagePullSecrets") or ()}
    # Secrets reach a pod as volumes, as pull secrets and as variables.
    for variable in container["env"]:
        ref = (variable.get("valueFrom") or {}).get("secretKeyRef")
        found |= {ref["name"]} if ref else set()
    return found


async def attacks(world: ClusterWorld, editor: KubeApi, wanted: dict[str, Json]) -> None:
    """Make these Exports, as the editor; each is refused at admission, or says what is not allowed
    and has no Job."""
    made: dict[str, str] = {}
    # All attacks are created first, and the operator refuses them side by side.
    for number, (what, part) in enumerate(wanted.items()):
        name = f"a{number}"
        table = {"name": f"db.t{number}", "warehouse": "/lake", **part.get("table", {})}
        spec = {"topicRef": {"name": "t"}, "continuous": {}, **part, "table": table}
        body = {
            "apiVersion": EXPORT.api_version,
            "kind": "Export",
            "metadata": {"name": name},
            "spec": spec,
        }
        # The CRD's validation already refuses settings that load code.
        if what in AT_ADMISSION:
            with pytest.raises(Invalid, match="loads code"):
                await editor.create(EXPORT, world.namespace, body)
            continue
        await editor.create(EXPORT, world.namespace, body)
        made[name] = what
    # The others exist, have a reason, and no status repeats a Secret's value.
    for name, what in made.items():
        status = await world.status_where(
            EXPORT, name, lambda found: bool(reason_of(found, "Ready"))
        )
        assert reason_of(status, "Ready") in ("PolicyRefused", "SecretNotOffered"), (what, status)
        assert reason_of(status, "Stalled"), what
        assert MARK not in json.dumps(status)
    # A Job, even one that fails, could have read a Secret.
    assert await world.api.list_all(JOB, world.namespace) == []


def reason_of(status: Json, condition: str) -> str:
    """Return the reason of a condition that the operator has written."""
    for item in status.get("conditions") or ():
        if item["type"] == condition and item["reason"] != "Pending":
            return str(item["reason"])
    return ""


def user(name: str, **spec: Any) -> Json:
    return {
        "apiVersion": USER.api_version,
        "kind": "User",
        "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "demo"}} | spec,
    }


def with_password(name: str, secret: str, key: str = "password") -> Json:
    ref = {"valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
    return user(name, authentication={"password": ref})


async def test_export_is_refused_a_secret_that_is_not_offered(
    world: ClusterWorld, editor: KubeApi, peer: BrokerPeer
) -> None:
    wanted = {
        f"{victim}: {what}": made_of(part, victim)
        for victim in VICTIMS
        for what, part in NAMED.items()
    }
    del wanted["bob: user of the secret's name"]  # it is a User of the Cluster
    for victim in ("application", "tier", "offered-to-users"):
        # A User of a Secret's name: that Secret is not what the operator would make for it.
        await editor.create(USER, world.namespace, user(victim))
        await world.condition(USER, victim, "Ready", "False", "SecretTaken")
    # The names of the protected Secrets are reserved, so a User cannot have them at all.
    for victim in ("demo-ca", "broker-1-tls"):
        del wanted[f"{victim}: user of the secret's name"]
        with pytest.raises(Invalid):
            await editor.create(USER, world.namespace, user(victim))
    await attacks(world, editor, wanted)


async def test_export_cannot_send_an_offered_secret_elsewhere(
    world: ClusterWorld, editor: KubeApi, peer: BrokerPeer
) -> None:
    await attacks(world, editor, CARRIED)


async def test_offered_secret_is_used_until_the_offer_is_withdrawn(
    world: ClusterWorld, editor: KubeApi, peer: BrokerPeer
) -> None:
    """So the refusals above are those of a policy that allows something."""
    spec = {
        "topicRef": {"name": "t"},
        "continuous": {},
        "table": {"name": "db.t", "warehouse": "s3a://lake/x", **OFFERED["table"]},
        "source": source("alice", tier="auto"),
        "job": {"image": jobs.IMAGE, "conf": {"spark.driver.memory": "1g"}},
    }
    body = {
        "apiVersion": EXPORT.api_version,
        "kind": "Export",
        "metadata": {"name": "x"},
        "spec": spec,
    }
    # The policy allows this Export, and its Job can read the offered Secret and its user's password
    # alone.
    await editor.create(EXPORT, world.namespace, body)
    job = await jobs.job(world, "x-1")
    assert secrets_of(job) == {"offered", "alice"}
    # The owner withdraws the offer. A later change of the Export must not start another Job with
    # the Secret.
    await world.annotate(SECRET, "offered", **{OFFERED_ANNOTATION: None})
    spec["job"]["conf"] = {"spark.driver.memory": "2g"}  # type: ignore[index]
    await editor.merge_patch(EXPORT, world.namespace, "x", {"spec": spec})
    await world.condition(EXPORT, "x", "Stalled", "True", "SecretNotOffered")

    # A Job of the earlier version may still be terminating.
    async def is_ending() -> bool:
        found = await world.api.list_all(JOB, world.namespace)
        return all(item["metadata"].get("deletionTimestamp") for item in found)

    await world.until(is_ending, "the job ends")


async def test_user_is_refused_a_password_that_is_not_offered(
    world: ClusterWorld, editor: KubeApi, peer: BrokerPeer
) -> None:
    # Some Secrets are offered to other kinds, some to none, one belongs to another User.
    for number, victim in enumerate(("demo-ca", "application", "tier", "offered", "bob")):
        for key in ("password", "tls.key"):
            name = f"thief-{number}-{key.replace('.', '-')}"
            await editor.create(USER, world.namespace, with_password(name, victim, key))
            await world.condition(USER, name, "Ready", "False", "PasswordUnusable")
            assert await world.is_deleted(SECRET, name)
            assert name not in peer.users or not peer.users[name].scram
    # The positive case: an offer to Users.
    await editor.create(USER, world.namespace, with_password("guest", "offered-to-users"))
    await world.condition(USER, "guest", "Ready", "True")


async def test_existing_secret_is_indistinguishable_from_a_missing_one(
    world: ClusterWorld, editor: KubeApi, peer: BrokerPeer
) -> None:
    said = set()
    for name in ("application", "nowhere"):
        await editor.create(USER, world.namespace, with_password(f"of-{name}", name))
        told = await world.condition(USER, f"of-{name}", "Ready", "False", "PasswordUnusable")
        # Only the name in the message may differ, or the message would reveal which Secrets exist.
        said.add(told["message"].replace(name, "NAME"))
    assert len(said) == 1


async def test_roles_forbid_secrets_processes_and_the_policy(
    world: ClusterWorld, editor: KubeApi, peer: BrokerPeer
) -> None:
    """Neither to a Secret, nor to a process, nor to the policy itself."""
    # Direct reads are forbidden by RBAC, as are Pods and Jobs, which could mount a Secret.
    for name in (*VICTIMS, "alice"):
        with pytest.raises(Forbidden):
            await editor.get(SECRET, world.namespace, name)
    for kind in (SECRET, POD, JOB):
        with pytest.raises(Forbidden):
            await editor.list_all(kind, world.namespace)
        with pytest.raises(KubeError):
            await editor.create(kind, world.namespace, {"metadata": {"name": "mine"}})
    # Clusters and Brokers contain the policy and the storage, which editors must not change.
    for kind, name in ((CLUSTER, "demo"), (BROKER, "broker-1")):
        with pytest.raises(Forbidden):
            await editor.merge_patch(kind, world.namespace, name, {"spec": {}})
        with pytest.raises(Forbidden):
            await editor.delete(kind, world.namespace, name)
        with pytest.raises(Forbidden):
            await editor.create(kind, world.namespace, {"metadata": {"name": "mine"}, "spec": {}})
