"""The directory: where brokers, services and applications are registered and found.

One set of records (`store`), two faces: UDDI v3 over SOAP (`soap`, `uddi`) and REST (`rest`). `server` puts both behind one port.
"""
