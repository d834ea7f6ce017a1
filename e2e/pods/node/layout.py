"""Files of one run's node, all in one folder that is removed with the run."""

from dataclasses import dataclass
from pathlib import Path

#: Sockets are in a /run that exists only in the node's mount namespace.
CONTAINERD_SOCKET = Path("/run/containerd/containerd.sock")


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below ``root``, the folder of a node."""

    root: Path

    @property
    def logs(self) -> Path:
        """Folder with one log file for each of the node's programs."""
        return self.root / "logs"

    @property
    def pki(self) -> Path:
        """Folder of keys and certificates."""
        return self.root / "pki"

    @property
    def admin(self) -> Path:
        """Kubeconfig of the cluster's administrator."""
        return self.kubeconfig("admin")

    def kubeconfig(self, who: str) -> Path:
        """Return the kubeconfig of one of :data:`e2e.pods.node.credentials.USERS`."""
        return self.pki / f"{who}.kubeconfig"

    def config(self, name: str) -> Path:
        """Return the path of a configuration file."""
        return self.root / "config" / name

    def data(self, name: str) -> Path:
        """A folder of one program."""
        return self.root / "data" / name

    @property
    def containerd_config(self) -> Path:
        """Also named where ``ctr`` is called."""
        return self.config("containerd.toml")
