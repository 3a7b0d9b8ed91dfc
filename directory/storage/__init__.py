"""The records in the database, the accounts that may write them, and errors."""
