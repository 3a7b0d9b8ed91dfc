"""The classes of the JMS-like API."""
