"""The journal: what a broker writes down of each message, and the files that it writes it to."""
