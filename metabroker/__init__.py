"""The metabroker: clients of a community broker reach remote brokers through it, by publish and subscribe alone (docs/metabroker.md)."""
