"""`/metrics` for Prometheus: read from Redis and the database when it is asked for, so that processes keep no files.

`view` answers, `collector` names every metric, `redis_readings` and `database_readings` find the numbers.
What is counted while the service works is in repositories/base/counters.py.
"""
