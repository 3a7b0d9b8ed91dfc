"""Message selectors: which messages somebody wants, said in the language of Jakarta Messaging."""
