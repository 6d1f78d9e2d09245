"""Hooks of git hosts: `receive` takes them in, `proofs` and `events` read them, `routes` makes them for apps."""
