"""Stock clients that are not let in leave sockets behind; attackers of manifests have a namespace
with a Cluster on the real API server."""

from tests.integration.operator.conftest import kubeconfig, world
from tests.leftover_sockets import pytest_runtest_teardown

__all__ = ["kubeconfig", "pytest_runtest_teardown", "world"]
