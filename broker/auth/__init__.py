"""Who a client is (passwords, certificates, tokens) and what it may do (rules): asked when it comes, never for a message."""
