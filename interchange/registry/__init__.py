"""The registry: which services there are, whose they are, who may call them (us-9037726, l. 44-52, 184)."""
