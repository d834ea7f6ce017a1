"""The tier of Apache Kafka's plug-in by Aiven, read without brokers (``layout=aiven``)."""
