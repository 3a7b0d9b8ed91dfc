"""Messages that come by themselves: frames that are told at a glance, and receipts that go at once."""
