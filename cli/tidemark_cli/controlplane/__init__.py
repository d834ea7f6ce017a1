"""Local control plane: a real etcd and kube-apiserver in one process, kubectl, and MinIO."""

from tidemark_cli.controlplane.client import kubectl, run_kubectl
from tidemark_cli.controlplane.launcher import ControlPlane
from tidemark_cli.controlplane.process import ServerStartError

__all__ = ["ControlPlane", "ServerStartError", "kubectl", "run_kubectl"]
