"""The store: what keeps messages, deliveries and state; see docs/store.md."""

from .base import Kind, Store, StoreError
from .records import Batch, StoredDelivery, StoredRun
from .writer import Writer

__all__ = ["Batch", "Kind", "Store", "StoreError", "StoredDelivery", "StoredRun", "Writer"]
