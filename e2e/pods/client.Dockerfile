# A client inside the cluster: Python, and a Kafka client that is none of ours.
ARG BASE=docker.io/library/python:3.11-slim-bookworm
ARG RUNTIME=${BASE}
FROM ${RUNTIME}
COPY kafka /app/kafka
ENV PYTHONPATH=/app PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["python3", "-c", "import signal; signal.pause()"]
