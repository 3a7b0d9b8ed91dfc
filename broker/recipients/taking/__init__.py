"""Messages leave sessions: faces and watches, seizures, moves from one session of a recipient to another."""
