"""Commands on a cluster's records: how they are entered, shown, positioned and counted."""
