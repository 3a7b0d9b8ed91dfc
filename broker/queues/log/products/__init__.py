"""Other products that keep the log of the queues: NATS JetStream, Redis Streams, RabbitMQ."""
