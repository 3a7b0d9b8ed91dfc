"""AMQP 0-9-1 remotes, such as RabbitMQ: topics are routing keys of a topic exchange (docs/connectors.md)."""
