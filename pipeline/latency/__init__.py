"""Latency: histograms, and percentiles from them."""
