"""Hooks of git hosts: `middleware` lets them in, `receive` answers, `proofs` and `events` read them, `arrivals` asks
Redis, `routes` makes them for apps."""
