"""The remote log manager: what a broker does between its logs and the tier (KIP-405, KIP-950)."""
