"""The RQ worker of every queue: its work horse stays, and what a dead one held is freed."""

import gc
import logging
import os
import signal
from types import FrameType
from typing import Any

import redis
from django.db import close_old_connections
from rq import Queue
from rq import Worker as RqWorker
from rq.executions import Execution
from rq.job import Job

from docora.processes import parent_death
from docora.processes.horse import Order, Reins
from repositories.base.connections import ANONYMOUS
from repositories.repo_lock import release_after_kill, release_leftovers, shutdown_repo_lock, stop_waiting

log = logging.getLogger("docora.repo_lock")

# Sent to the work horse at a warm shutdown: finish what runs, but wait for no lock any more.
STOP_WAITING = signal.SIGUSR1


class Worker(RqWorker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # RQ's defaults (10 minutes, 30 seconds) leave the jobs of a killed worker lying for seven minutes.
        kwargs.setdefault("maintenance_interval", 10)
        kwargs.setdefault("job_monitoring_interval", 5)
        super().__init__(*args, **kwargs)
        self.connection.connection_pool.connection_kwargs.update(ANONYMOUS)
        self._horse_was_killed = False
        self._killed_by_us = False
        self._reins: Reins | None = None

    def bootstrap(self, *args: Any, **kwargs: Any) -> None:
        """A garbage collection in the fork of a job would copy every page of what is here now: exempt it."""
        super().bootstrap(*args, **kwargs)
        parent_death.end_forks_with_us()
        gc.collect()
        gc.freeze()

    def fork_work_horse(self, job: Job, queue: Queue) -> None:
        """The horse of the last job goes on with this one, unless it is time for a new one."""
        self._killed_by_us = False
        if not self._hand_over(job, queue):
            self._reins = Reins()
            super().fork_work_horse(job, queue)
            self._reins.in_the_worker(self.horse_pid)
        if self._stop_requested:  # before there was a horse to be told
            os.kill(self.horse_pid, STOP_WAITING)

    def _hand_over(self, job: Job, queue: Queue) -> bool:
        if self._reins is None or self.execution is None:
            return False
        if self._reins.hand(Order(job_id=job.id, queue=queue.name, execution_id=self.execution.id)):
            self._horse_pid = self._reins.horse_pid
            return True
        self._put_horse_down()
        return False

    def perform_job(self, job: Job, queue: Queue) -> bool:
        """In the horse: one job after the other, for as long as they end well."""
        end = self._reins.in_the_horse() if self._reins else None
        ended_well = self._perform_one(job, queue)
        while end and ended_well and (order := end.next_order()):
            close_old_connections()
            ended_well = self._perform_one(*self._take(order))
        return ended_well

    def _take(self, order: Order) -> tuple[Job, Queue]:
        self.execution = Execution(order.execution_id, order.job_id, self.connection, self.name)
        job = self.job_class.fetch(order.job_id, self.connection, self.serializer)
        return job, next(queue for queue in self.queues if queue.name == order.queue)

    def _perform_one(self, job: Job, queue: Queue) -> bool:
        try:
            return super().perform_job(job, queue)
        finally:
            release_leftovers(job.id)

    def wait_for_horse(self) -> Any:
        if self._reins and not self._killed_by_us and self._reins.has_done_its_job():
            return self.horse_pid, os.EX_OK, None
        pid, status, usage = super().wait_for_horse()
        self._horse_was_killed = status != os.EX_OK
        self._drop_reins()
        return pid, status, usage

    def kill_horse(self, *args: Any, **kwargs: Any) -> None:
        super().kill_horse(*args, **kwargs)
        self._killed_by_us = True

    def monitor_work_horse(self, job: Job, queue: Queue) -> None:
        """RQ's own hook for a killed horse is not called when a job is stopped or the worker is forced to end."""
        horse = self.horse_pid
        self._horse_was_killed = False
        try:
            super().monitor_work_horse(job, queue)
        finally:
            if self._horse_was_killed:
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

    def run_maintenance_tasks(self) -> None:
        """Every few seconds, between jobs: an idle worker does not keep the memory of a horse for long."""
        if self._reins and self._reins.too_old:
            self._put_horse_down()
        super().run_maintenance_tasks()

    def _put_horse_down(self) -> None:
        reins, self._reins = self._reins, None
        if reins:
            reins.put_down()

    def _drop_reins(self) -> None:
        # Forgotten first: RQ's alarm may ring between the two.
        reins, self._reins = self._reins, None
        if reins:
            reins.drop()

    def teardown(self) -> None:
        if self.horse_pid:
            self._drop_reins()  # it is left to finish its job
        else:
            self._put_horse_down()
        super().teardown()
        shutdown_repo_lock()
