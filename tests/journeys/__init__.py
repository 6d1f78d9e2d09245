"""Real servers, real processes, real signals."""
