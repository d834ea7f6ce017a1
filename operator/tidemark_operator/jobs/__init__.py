"""Runners of the jobs of Exports: Kubernetes, or this process where there is no kubelet."""
