"""Surveillance of recipients and fail-over: see docs/recipients.md."""
