"""Tables of a broker's file that belong to no room of the broker: its directory, the metabroker inside it."""
