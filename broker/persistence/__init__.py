"""What a broker keeps on disk: sessions, custody, commits, recovery and bounds."""
