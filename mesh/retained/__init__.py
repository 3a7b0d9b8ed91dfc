"""Retained messages that are the same at every site: `RetainedSync` and what it hands out. Explained in docs/retained.md."""

from .record import Key, Kind, Record
from .sync import Applied, DeleteValue, PutValue, RetainedSync, Send, Update

__all__ = ["Applied", "DeleteValue", "Key", "Kind", "PutValue", "Record", "RetainedSync", "Send", "Update"]
