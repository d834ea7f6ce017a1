"""Check of an Export against the policy of its Cluster. Pure.

Everything that is not allowed is refused: a list of dangerous settings would have gaps with each
new version of Spark or Iceberg.
"""

import re
from collections.abc import Iterable, Iterator

from tidemark_operator.resources.export import ExportSpec
from tidemark_operator.resources.export_pod import ExportJob
from tidemark_operator.resources.export_policy import ExportPolicy, is_code

#: Keys of Spark's configuration that load no code and, except for addresses, send nothing.
SPARK_CONF = (
    "spark.default.parallelism",
    "spark.driver.maxResultSize",
    "spark.driver.memory",
    "spark.hadoop.fs.s3a.access.key",
    "spark.hadoop.fs.s3a.attempts.maximum",
    "spark.hadoop.fs.s3a.connection.maximum",
    "spark.hadoop.fs.s3a.connection.ssl.enabled",
    "spark.hadoop.fs.s3a.connection.timeout",
    "spark.hadoop.fs.s3a.endpoint",
    "spark.hadoop.fs.s3a.endpoint.region",
    "spark.hadoop.fs.s3a.path.style.access",
    "spark.hadoop.fs.s3a.secret.key",
    "spark.hadoop.fs.s3a.session.token",
    "spark.hadoop.fs.s3a.threads.max",
    "spark.log.level",
    "spark.memory.*",
    "spark.network.timeout",
    "spark.python.worker.memory",
    "spark.python.worker.reuse",
    "spark.sql.adaptive.*",
    "spark.sql.ansi.enabled",
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.files.maxRecordsPerFile",
    "spark.sql.session.timeZone",
    "spark.sql.shuffle.partitions",
    "spark.task.maxFailures",
)
#: Properties of Iceberg's catalogs that are safe in the same way. Classes must be Iceberg's own.
CATALOG_PROPERTIES = (
    "audience",
    "cache-enabled",
    "cache.*",
    "catalog-impl",
    "client.region",
    "clients",
    "credential",
    "gcs.project-id",
    "glue.endpoint",
    "glue.id",
    "glue.skip-archive",
    "header.X-Iceberg-Access-Delegation",
    "io-impl",
    "jdbc.password",
    "jdbc.schema-version",
    "jdbc.user",
    "oauth2-server-uri",
    "password",
    "prefix",
    "rest.sigv4-enabled",
    "rest.signing-name",
    "rest.signing-region",
    "s3.access-key-id",
    "s3.endpoint",
    "s3.path-style-access",
    "s3.region",
    "s3.secret-access-key",
    "s3.session-token",
    "scope",
    "token",
    "token-exchange-enabled",
    "type",
    "uri",
    "user",
)
#: Keys whose value may come from a Secret. Programs name the value of any other key in an error,
#: which a status shows, and some change its case first.
SECRET_SPARK_CONF = (
    "spark.hadoop.fs.s3a.access.key",
    "spark.hadoop.fs.s3a.secret.key",
    "spark.hadoop.fs.s3a.session.token",
)
SECRET_CATALOG_PROPERTIES = (
    "credential",
    "jdbc.password",
    "jdbc.user",
    "password",
    "s3.access-key-id",
    "s3.secret-access-key",
    "s3.session-token",
    "token",
    "user",
)
#: Spark's catalogs read keys without regard to case, and some programs trim them.
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_CLASS = re.compile(r"(^|[.-])(impl|class|factory|provider)$", re.IGNORECASE)
_ICEBERGS_OWN = "org.apache.iceberg."
_ADDRESS = re.compile(r"(^|[._-])(uri|url|endpoint)$", re.IGNORECASE)
_FOLDER = re.compile(r"(^|[.-])(path|location)$", re.IGNORECASE)
#: Clients build a host name from it.
_REGION = re.compile(r"(^|[._-])region$", re.IGNORECASE)
_REGION_NAME = re.compile(r"[A-Za-z0-9-]+")
#: Spark and Hadoop replace ``${...}`` by another setting or by a variable of the environment, which
#: contains the Secrets of the job. Iceberg does so with ``env:...``.
_REFERENCE = re.compile(r"[$][{]|^\s*env:", re.IGNORECASE)
#: scheme://authority/path, or a path. User, query and escapes are excluded, because programs parse
#: them differently.
_PLACE = re.compile(
    r"(?:(?P<scheme>[a-z][a-z0-9+.-]*):(?://(?P<authority>[A-Za-z0-9._:\[\]-]*))?)?"
    r"(?P<path>(?:/[^\s?#%\\]*)?)"
)
_FILE = "file"
#: Folders of a pod that are not the image's.
_NOT_OF_THE_IMAGE = ("/tmp", "/var/run", "/run", "/dev", "/proc", "/sys")
_SHOWN = 4


def refusal(
    spec: ExportSpec, policy: ExportPolicy | None, *, in_pods: bool, image: str = ""
) -> str:
    """Return what the Cluster's export policy forbids in an Export, and what to do; "" for nothing.

    ``policy``: None is the default policy. ``in_pods``: jobs are pods, and not processes beside the
    operator. ``image``: default image of jobs.
    """
    found = list(_Checks(spec, policy or ExportPolicy(), in_pods=in_pods, image=image).refused())
    # The message shows a few settings; the rest is counted.
    if not found:
        return ""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return (
        f"the Cluster does not allow {'; '.join(found[:_SHOWN])}{more}. Remove "
        "it, or have the Cluster's owner allow it"
    )


class _Checks:
    def __init__(
        self, spec: ExportSpec, policy: ExportPolicy, *, in_pods: bool, image: str
    ) -> None:
        self._spec, self._policy = spec, policy
        self._in_pods, self._image = in_pods, image
        self._job = spec.job or ExportJob()

    def refused(self) -> Iterator[str]:
        """Yield each refused setting, with the policy's field that could allow it."""
        yield from self._program()
        yield from self._spark_conf()
        yield from self._catalog()
        yield from self._places()
        yield from self._schema_file()
        yield from self._brokers()
        yield from self._registry()
        if self._in_pods:
            yield from self._pod()

    def _program(self) -> Iterator[str]:
        """Check the code that runs: image and jars."""
        job, policy = self._job, self._policy
        # Without pods the image is not used; the default image is always allowed.
        image = job.image if self._in_pods and job.image != self._image else None
        if image and not any(_is_of(image, allowed) for allowed in policy.images):
            yield _refused_setting("image", image, "images")
        for jar in job.jars:
            if not is_below(jar, policy.jars) and not self._is_of_the_image(jar):
                yield _refused_setting("jar", jar, "jars")

    def _is_of_the_image(self, jar: str) -> bool:
        """Return whether a jar is in the allowed image, not in a volume, which others may write."""
        if not self._in_pods:
            return False
        others = (*_NOT_OF_THE_IMAGE, *(volume.mount_path for volume in self._job.volumes))
        return is_below(jar.removeprefix("local://"), ("/",)) and not is_below(
            jar.removeprefix("local://"), others
        )

    def _spark_conf(self) -> Iterator[str]:
        """Yield each Spark setting of the Export that the policy does not allow."""
        job, listed = self._job, self._policy.spark_conf
        # The order matters: code is refused even if the owner's list would match the key.
        for key, value in job.conf.items():
            if is_code(key):
                yield _of_code(key)
            elif not value.isprintable():
                yield f"a value of Spark's {key} with a control character"
            elif not _KEY.fullmatch(key) or not _matches(key, (*SPARK_CONF, *listed)):
                yield _refused_setting("Spark's", key, "sparkConf")
            elif _ADDRESS.search(key) and not self._is_endpoint(value):
                yield _refused_setting(key, value, "endpoints")
            else:
                yield from _misread(f"Spark's {key}", key, value)
        # A Secret's value cannot be checked, so only keys whose value Spark never shows may use
        # one.
        for hidden in job.conf_secrets:
            key = hidden.name
            if is_code(key):
                yield _of_code(key)
            elif not _matches(key, (*SECRET_SPARK_CONF, *listed)):
                yield _refused_setting("Spark's", f"{key} from a Secret", "sparkConf")
            elif _ADDRESS.search(key):
                yield f"{key} from a Secret (write the address into the manifest)"

    def _catalog(self) -> Iterator[str]:
        """Yield each property of the Iceberg catalog that the policy does not allow."""
        table, listed = self._spec.table, self._policy.catalog_properties
        for key, value in table.catalog.items():
            # Each property by its kind: unknown, a class, an address, a path.
            what = f"the catalog's {key}"
            if not _KEY.fullmatch(key) or not _matches(key, (*CATALOG_PROPERTIES, *listed)):
                yield _refused_setting("the catalog's", key, "catalogProperties")
            elif _CLASS.search(key) and not self._is_known_class(key, value):
                yield _refused_setting(what, value, "catalogProperties")
            elif _ADDRESS.search(key) and not self._is_endpoint(value):
                yield _refused_setting(what, value, "endpoints")
            elif key == "prefix" and _parts(f"/{value}") is None:
                yield f"{what} {value}, which points outside the catalog's path"
            else:
                yield from _misread(what, key, value)
        # From a Secret: only keys whose value no program shows in an error.
        for hidden in table.catalog_secrets:
            key = hidden.name
            if not _matches(key, (*SECRET_CATALOG_PROPERTIES, *listed)):
                yield _refused_setting("the catalog's", f"{key} from a Secret", "catalogProperties")
            elif _ADDRESS.search(key):
                yield (f"the catalog's {key} from a Secret (write the address into the manifest)")

    def _is_known_class(self, key: str, name: str) -> bool:
        """Return whether the class is Iceberg's own, or the Cluster's owner allows the property."""
        return name.startswith(_ICEBERGS_OWN) or _matches(key, self._policy.catalog_properties)

    def _places(self) -> Iterator[str]:
        """Check the places where tables are written: the warehouse, and properties with paths."""
        table = self._spec.table
        if table.warehouse and not self._is_warehouse(table.warehouse):
            yield _refused_setting("the warehouse", table.warehouse, "warehouses")
        yield from _misread("the warehouse", "", table.warehouse or "")
        for key, value in table.properties.items():
            yield from _misread(f"the table's {key}", key, value)
            if _CLASS.search(key):
                yield f"the table's property {key}, which loads a class"
            elif _FOLDER.search(key) and not self._is_warehouse(value):
                yield _refused_setting(f"the table's {key}", value, "warehouses")

    def _schema_file(self) -> Iterator[str]:
        """Check a schema's file on the operator's machine: errors in it are shown in the status."""
        schema = self._spec.table.schema_
        if schema is None or schema.file is None or self._in_pods:
            return
        if not is_below(schema.file, (*(self._policy.warehouses or ()), *self._policy.jars)):
            yield _refused_setting("the schema's file", schema.file, "jars")

    def _is_warehouse(self, place: str) -> bool:
        allowed = self._policy.warehouses
        if allowed is not None:
            return is_below(place, allowed)
        # In a pod, a path is the pod's own or belongs to an allowed claim.
        return self._in_pods or not _is_path(place)

    def _brokers(self) -> Iterator[str]:
        """Check that a password is sent only to the Cluster's own or to listed brokers."""
        source = self._spec.source
        if source is None or source.bootstrap is None or source.user_ref is None:
            return
        for address in source.bootstrap.split(","):
            if not self._is_endpoint(f"kafka://{address}"):
                yield _refused_setting(
                    "a User's credentials for", f"kafka://{address}", "endpoints"
                )

    def _registry(self) -> Iterator[str]:
        """Check the registry's address: a response that is no schema is shown in the status."""
        schema = self._spec.table.schema_
        if schema is None or schema.registry is None:
            return
        for url in schema.registry.url.split(","):
            if not self._is_endpoint(url):
                yield _refused_setting("the registry", url, "endpoints")

    def _is_endpoint(self, address: str) -> bool:
        return is_below(address, self._policy.endpoints)

    def _pod(self) -> Iterator[str]:
        job, policy = self._job, self._policy
        account = job.service_account_name
        if account is not None and account not in policy.service_accounts:
            yield _refused_setting("service account", account, "serviceAccounts")
        for volume in job.volumes:
            if volume.claim_name not in policy.claims:
                yield _refused_setting("claim", volume.claim_name, "claims")
        for key in job.pod_labels:
            if not _matches(key, policy.pod_labels):
                yield _refused_setting("label", key, "podLabels")
        for key in job.pod_annotations:
            if not _matches(key, policy.pod_annotations):
                yield _refused_setting("annotation", key, "podAnnotations")


def _refused_setting(what: str, value: str, field: str) -> str:
    return f"{what} {value} (spec.exports.{field})"


def _of_code(key: str) -> str:
    return f"Spark's {key}, which loads code (build it into an image)"


def _misread(what: str, key: str, value: str) -> Iterator[str]:
    """Yield why a program would read the value as something else, if it would."""
    if _REFERENCE.search(value):
        yield (f"{what} {value}, which contains a variable or reference (write the value itself)")
    elif _REGION.search(key) and value and not _REGION_NAME.fullmatch(value):
        yield f"{what} {value}, which is not a region"


def _matches(key: str, patterns: Iterable[str]) -> bool:
    return any(
        key.startswith(pattern[:-1]) if pattern.endswith("*") else key == pattern
        for pattern in patterns
    )


def _is_of(image: str, allowed: str) -> bool:
    """Return whether an image is the allowed one, or a tag or digest of the allowed repository. A
    colon that is followed by a slash begins a registry's port, not a tag."""
    rest = image.removeprefix(allowed)
    return image == allowed or (
        image.startswith(allowed) and rest[:1] in (":", "@") and "/" not in rest
    )


def is_below(place: str, allowed: Iterable[str]) -> bool:
    """Return whether a path or URI is an allowed place or below one. A URI that programs may parse
    differently must equal an allowed place literally."""
    # An unparsable place still matches literally.
    parts = _parts(place)
    for root_place in allowed:
        if place == root_place:
            return True
        root = _parts(root_place)
        if parts is None or root is None or parts[:2] != root[:2]:
            continue
        if parts[2][: len(root[2])] == root[2]:
            return True
    return False


def _parts(place: str) -> tuple[str, str, tuple[str, ...]] | None:
    """Return scheme, authority and folders, None for another form."""
    found = _PLACE.fullmatch(place)
    if found is None:
        return None
    folders = tuple(part for part in found["path"].split("/") if part)
    if "." in folders or ".." in folders:
        return None
    scheme, authority = found["scheme"] or _FILE, (found["authority"] or "").lower()
    if not authority and scheme != _FILE:
        return None
    return scheme, authority, folders


def _is_path(place: str) -> bool:
    """Return whether a place is a path of the machine, in any notation."""
    return "://" not in place or place.lower().startswith(f"{_FILE}:")
