"""The same rooms again, and the journeys through all of them."""
