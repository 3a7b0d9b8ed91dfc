"""What every part of the client stands on: errors, settings, the interface to a network."""
