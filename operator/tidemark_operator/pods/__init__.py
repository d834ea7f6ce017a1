"""Kubernetes objects of brokers in pods, computed from a Broker and its Cluster. Pure."""
