"""What Redis knows: what was counted, the queues, the workers and their hosts."""

import time
from collections import Counter as Tally
from collections.abc import Iterator

import redis
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from rq import Worker
from rq.job import Job
from rq.utils import utcparse

from repositories.base import counters, disks, pulse, queue

# Urgent jobs go to the front of their queue, so the oldest is not always the first: so many are looked at.
_LOOKED_AT = 50


def read() -> Iterator[Metric]:
    connection = counters.connection()
    yield from _counted(counters.Totals(connection))
    yield from _queues(connection)
    yield from _workers(connection)
    yield from _disks(connection)
    since = pulse.seconds_since_tick(connection)
    if since is not None:
        yield GaugeMetricFamily(
            "docora_scheduler_last_tick_age_seconds", "Seconds since the scheduler's last tick.", value=since
        )


def _counted(totals: counters.Totals) -> Iterator[Metric]:
    for counter in counters.ALL:
        name, labels = f"docora_{counter.name}", list(counter.labels)
        if isinstance(counter, counters.Histogram):
            histogram = HistogramMetricFamily(name, counter.help, labels=labels)
            for values in counter.combinations:
                histogram.add_metric(values, totals.buckets(counter, values), totals.sum(counter, values))
            yield histogram
        else:
            family = CounterMetricFamily(name, counter.help, labels=labels)
            for values in counter.combinations:
                family.add_metric(values, totals.count(counter, values))
            yield family


def _queues(connection: redis.Redis) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("docora_jobs", "Jobs in each queue.", labels=["queue", "state"])
    ages = GaugeMetricFamily(
        "docora_oldest_job_age_seconds", "How long the oldest job has been waiting in its queue.", labels=["queue"]
    )
    for name in queue.ALL:
        line = queue.named(name)
        with connection.pipeline(transaction=False) as pipeline:
            pipeline.llen(line.key)
            pipeline.zcard(line.scheduled_job_registry.key)
            pipeline.zcard(line.started_job_registry.key)
            pipeline.zcard(line.failed_job_registry.key)
            pipeline.lrange(line.key, 0, _LOOKED_AT - 1)
            *numbers, first = pipeline.execute()
        for state, number in zip(("waiting", "later", "running", "failed"), numbers, strict=True):
            jobs.add_metric([name, state], number)
        ages.add_metric([name], _age_of_oldest(connection, first))
    yield jobs
    yield ages


def _age_of_oldest(connection: redis.Redis, job_ids: list[bytes]) -> float:
    with connection.pipeline(transaction=False) as pipeline:
        for job_id in job_ids:
            pipeline.hget(Job.key_for(job_id.decode()), "enqueued_at")
        moments = [utcparse(moment.decode()).timestamp() for moment in pipeline.execute() if moment]
    return max(0.0, time.time() - min(moments)) if moments else 0.0


def _workers(connection: redis.Redis) -> Iterator[Metric]:
    """A dead worker's record expires, though its name stays in the list for a while."""
    with connection.pipeline(transaction=False) as pipeline:
        for key in connection.smembers(Worker.redis_workers_keys):
            pipeline.hmget(key, "hostname", "queues", "state")
        alive = [[text.decode() for text in facts] for facts in pipeline.execute() if None not in facts]
    numbers = Tally(
        (name, "busy" if state == "busy" else "idle") for _, names, state in alive for name in names.split(",")
    )
    workers = GaugeMetricFamily("docora_workers", "Workers that are alive, by queue.", labels=["queue", "state"])
    for name in queue.ALL:
        for state in ("idle", "busy"):
            workers.add_metric([name, state], numbers[name, state])
    yield workers
    hosts = len({host for host, _, _ in alive})
    yield GaugeMetricFamily("docora_worker_hosts", "Hosts that have workers.", value=hosts)


def _disks(connection: redis.Redis) -> Iterator[Metric]:
    free = GaugeMetricFamily("docora_disk_free_bytes", "Free where a host keeps its clones.", labels=["host"])
    size = GaugeMetricFamily("docora_disk_size_bytes", "Size of the disk of a host's clones.", labels=["host"])
    for host, disk in disks.known(connection).items():
        free.add_metric([host], disk.free)
        size.add_metric([host], disk.size)
    yield free
    yield size
