"""What this room needs and what is no noun of it: queue, Redis, encryption, addresses, cursors."""
