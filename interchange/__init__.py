"""The message interchange: services that find, call and account for each other across sites (docs/interchange.md)."""
