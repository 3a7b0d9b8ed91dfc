"""The UDDI v3 face of the directory."""
