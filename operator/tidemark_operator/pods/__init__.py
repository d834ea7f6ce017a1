"""Brokers as pods: which Kubernetes objects a Broker and its Cluster come to. Pure."""
