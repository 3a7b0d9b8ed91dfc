"""Several processes of one broker: their configurations, and their totals."""
