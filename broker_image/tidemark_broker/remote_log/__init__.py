"""Remote log manager: the work of a broker between its logs and the tier (KIP-405, KIP-950)."""
