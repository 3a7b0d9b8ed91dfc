"""NATS remotes: topics are subjects; JetStream keeps what QoS 1 needs where a stream covers them (docs/connectors.md)."""
