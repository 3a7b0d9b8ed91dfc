"""What a broker says over HTTP: `/metrics` for Prometheus, `/health` and `/ready` for whoever starts and stops brokers."""
