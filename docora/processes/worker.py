"""The RQ worker of every queue: it frees what a dead job held, and lets no job wait for a lock at its shutdown."""

import contextlib
import gc
import logging
import os
import signal
from types import FrameType
from typing import Any

import redis
from rq import Queue
from rq import Worker as RqWorker
from rq.job import Job

from docora.processes import parent_death
from repositories.base import disks, log_context
from repositories.base.connections import OPTIONS
from repositories.base.listed_job import ListedJob
from repositories.repo_lock import release_after_kill, release_leftovers, shutdown_repo_lock, stop_waiting

log = logging.getLogger("docora.repo_lock")

# Sent to the work horse at a warm shutdown: finish what runs, but wait for no lock any more.
STOP_WAITING = signal.SIGUSR1


class Worker(RqWorker):
    job_class = ListedJob

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # RQ's defaults (10 minutes, 30 seconds) leave the jobs of a killed worker lying for seven minutes.
        kwargs.setdefault("maintenance_interval", 10)
        kwargs.setdefault("job_monitoring_interval", 5)
        super().__init__(*args, **kwargs)
        self.connection.connection_pool.connection_kwargs.update(OPTIONS)
        self._horse_ended_badly = False

    def bootstrap(self, *args: Any, **kwargs: Any) -> None:
        super().bootstrap(*args, **kwargs)
        parent_death.end_forks_with_us()
        # A garbage collection in the fork of a job would copy every page of what is here now: exempt it. Without
        # collecting first, which would itself copy some of what the workers share.
        gc.freeze()

    def run_maintenance_tasks(self) -> None:
        """Every few seconds, between jobs."""
        super().run_maintenance_tasks()
        with contextlib.suppress(OSError, redis.RedisError):
            disks.note(self.connection)

    def fork_work_horse(self, job: Job, queue: Queue) -> None:
        super().fork_work_horse(job, queue)
        self.stop_waiting_if_stopping()

    def stop_waiting_if_stopping(self) -> None:
        """For a shutdown that was requested before there was a horse to be told."""
        if self._stop_requested:
            os.kill(self.horse_pid, STOP_WAITING)

    def perform_job(self, job: Job, queue: Queue) -> bool:
        with log_context.bound(job_id=job.id, queue=queue.name):
            if request_id := log_context.accepted_request_id(job.meta.get("request_id")):
                log_context.add(request_id=request_id)
            try:
                return super().perform_job(job, queue)
            finally:
                release_leftovers(job.id)
                log_context.forget()

    def wait_for_horse(self) -> Any:
        pid, status, usage = super().wait_for_horse()
        self._horse_ended_badly = status != os.EX_OK
        return pid, status, usage

    def monitor_work_horse(self, job: Job, queue: Queue) -> None:
        """RQ's own hook for a killed horse is not called when a job is stopped or the worker is forced to end."""
        horse = self.horse_pid
        self._horse_ended_badly = False
        try:
            super().monitor_work_horse(job, queue)
        finally:
            if self._horse_ended_badly:
                self._free_locks(job, horse)

    def _free_locks(self, job: Job, horse: int) -> None:
        try:
            release_after_kill(job.id, horse)
        except redis.RedisError as error:
            log.warning("Locks of the killed job %s were not released, they will expire: %s", job.id, error)

    def _install_signal_handlers(self) -> None:
        super()._install_signal_handlers()
        # In the worker too, so that a horse has the handler from its first moment on.
        signal.signal(STOP_WAITING, self._stop_waiting)

    def _stop_waiting(self, signum: int, frame: FrameType | None) -> None:
        stop_waiting()

    def handle_warm_shutdown_request(self) -> None:
        super().handle_warm_shutdown_request()
        if self.horse_pid:
            os.kill(self.horse_pid, STOP_WAITING)

    def teardown(self) -> None:
        super().teardown()
        shutdown_repo_lock()
