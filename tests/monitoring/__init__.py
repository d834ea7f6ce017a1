"""Prometheus, Grafana's dashboards and the alerts, as tests need them."""
