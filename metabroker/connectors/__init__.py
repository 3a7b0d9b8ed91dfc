"""How remotes are reached: one connector for each protocol, all with the same interface (docs/connectors.md)."""
