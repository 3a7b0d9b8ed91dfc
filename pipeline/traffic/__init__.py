"""Traffic: who sends to whom, over which links, with how many copies, and what to change."""
