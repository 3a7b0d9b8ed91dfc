"""The metabroker: clients of a community broker reach remote brokers through it, only by publish and subscribe (docs/metabroker.md)."""
