"""Settings of a local cluster that later runs reuse: ports, tier, names.

Brokers and clients store addresses, so a port is chosen once and reused by each later ``up`` in the
folder.
"""

from dataclasses import asdict, dataclass, replace

from tidemark_devcluster.layout import Layout, LayoutError, read_json, write_json
from tidemark_devcluster.ports import free_ports

TIERS = ("directory", "s3")
TIDEMARK, KAFKA = "tidemark", "kafka"
ENGINES = (TIDEMARK, KAFKA)


@dataclass(frozen=True, slots=True)
class LocalClusterSettings:
    """Settings of one local cluster.

    ``kubeconfig`` is "" for its own control plane, else the given file. ``engine``: which brokers
    it has.
    """

    cluster: str
    namespace: str
    tier: str
    kubeconfig: str
    control_port: int
    metrics_port: int
    engine: str = TIDEMARK

    def save(self, layout: Layout) -> None:
        """Write the settings to the cluster's ``cluster.json``."""
        write_json(layout.settings, asdict(self))


def load(layout: Layout) -> LocalClusterSettings | None:
    """Return the settings that an earlier ``tidemark up`` stored in the folder, None without any.

    Raises :class:`LayoutError` for any other content.
    """
    value = read_json(layout.settings)
    if value is None:
        return None
    value.setdefault("engine", TIDEMARK)  # absent in folders of older versions
    texts = {"cluster", "namespace", "tier", "kubeconfig", "engine"}
    ports = {"control_port", "metrics_port"}
    if (
        set(value) != texts | ports
        or not all(isinstance(value[name], str) for name in texts)
        or not all(type(value[name]) is int and 0 < value[name] < 65536 for name in ports)
        or value["tier"] not in TIERS
        or value["engine"] not in ENGINES
    ):
        raise LayoutError(f"{layout.settings} was not written by `tidemark up`: remove it")
    return LocalClusterSettings(**value)


def choose(
    layout: Layout,
    *,
    cluster: str,
    tier: str | None,
    engine: str | None = None,
    kubeconfig: str = "",
    namespace: str = "default",
) -> LocalClusterSettings:
    """Return the settings of the folder's cluster, or choose and store those of a new one.

    ``tier`` and ``engine``: None for the stored ones or the default. Raises ValueError if they
    differ from the stored ones.
    """
    if engine == KAFKA and tier == "s3":
        raise ValueError("Apache Kafka runs with its own LocalTieredStorage, a folder: omit --tier")
    before = load(layout)
    if before is None:
        control, metrics = free_ports(2)
        settings = LocalClusterSettings(
            cluster,
            namespace,
            tier or "directory",
            kubeconfig,
            control,
            metrics,
            engine or TIDEMARK,
        )
        settings.save(layout)
        return settings
    for name, given in (("engine", engine), ("tier", tier)):
        stored = getattr(before, name)
        if given not in (None, stored):
            raise ValueError(
                f"{layout.root} contains a cluster whose {name} is {stored!r}: "
                f"use --{name} {stored}, or another --dir"
            )
    # The API server may change: the brokers' data does not depend on it.
    changed = replace(before, kubeconfig=kubeconfig or before.kubeconfig)
    changed.save(layout)
    return changed
