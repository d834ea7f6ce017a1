"""PartitionSlices, in which the controller stores its decisions, written in groups."""
