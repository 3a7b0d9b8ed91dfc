"""Faces for clients without MQTT: each request is carried out by a client of the broker that logs in as who has asked."""
