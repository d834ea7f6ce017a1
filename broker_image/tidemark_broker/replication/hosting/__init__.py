"""All replicas of this broker: made, given their states, repaired and removed."""
