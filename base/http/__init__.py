"""What HTTP servers of ours share: bounds, and how they are run."""
