"""Topics: metadata, creation, growth, deletion, and the replicas of partitions."""
