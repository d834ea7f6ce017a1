"""What stands behind the reconcilers: the engines that keep the topics, and their common port."""
