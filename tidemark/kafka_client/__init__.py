"""A client of any Kafka cluster: how to reach it, who we are to it, and its administration."""
