"""Who speaks: the certificates by which brokers and controllers of one cluster know each other."""
