"""Command line: a local cluster, its status, and the tools around it."""
