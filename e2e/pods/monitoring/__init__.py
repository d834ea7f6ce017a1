"""Prometheus in a pod, as the Prometheus operator would run it for the chart's objects."""
