"""Where the controller's decisions are kept: the PartitionSlices, written in groups."""
