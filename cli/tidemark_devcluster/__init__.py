"""Cluster of ``tidemark up``: control plane, tier, operator and brokers, each as a process."""
