"""All replicas of this broker: created, configured, repaired and removed."""
