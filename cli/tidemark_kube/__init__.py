"""Kubernetes client of the command line: kubeconfig, transport and requests."""
