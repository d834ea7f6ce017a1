"""``make bench-latency``: time from a record's scheduled send to its acknowledgement.

Our brokers and Apache Kafka's are measured in turn. For ours it also records what the slowest
records coincide with.
"""
