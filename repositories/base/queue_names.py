"""The names of the queues. The settings read them too, so nothing is imported here."""

# Looks that a hint asks for, and their deliveries. Long work never waits or runs here: it moves to the queues below.
URGENT = "urgent"
SNAPSHOTS = "snapshots"
DELIVERIES = "deliveries"
# Endpoints that hang wait here, so that they never hold a worker of the others.
SLOW_DELIVERIES = "deliveries-slow"
ALL = (URGENT, SNAPSHOTS, DELIVERIES, SLOW_DELIVERIES)
