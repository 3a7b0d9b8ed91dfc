"""Reading journals: which segments are used, which are set aside and why, and their events as a data frame."""
