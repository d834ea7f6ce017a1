"""A whole cluster on this machine: control plane, operator and brokers as real processes."""
