"""What every layer needs: addresses, names in logs, limits of logs."""
