"""The worker's side: when a horse is kept, and when it is replaced. The horse's side is `perform_job`."""

import os
from typing import Any

from django.db import close_old_connections
from rq import Queue
from rq.executions import Execution
from rq.job import Job

from docora.processes.kept_horse.channel import HorseChannel, Order
from docora.processes.worker import Worker
from repositories import messages

_WAIT_WITHOUT_HORSE = 1


class HorseKeepingWorker(Worker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._channel: HorseChannel | None = None
        super().__init__(*args, **kwargs)
        self._horse_is_killed = False

    @property
    def dequeue_timeout(self) -> int:
        """Seconds after which a worker that waits for a job goes to the end of the line.

        Redis gives a job to the worker that has waited longest. One without a horse would have to fork first, so it
        lets the others pass.
        """
        return super().dequeue_timeout if self._channel else _WAIT_WITHOUT_HORSE

    @property
    def connection_timeout(self) -> int:
        """The same for both: it is asked for once, when the connection is made."""
        return super().dequeue_timeout + 10

    def fork_work_horse(self, job: Job, queue: Queue) -> None:
        self._horse_is_killed = False
        if self._hand_over(job, queue):
            self.stop_waiting_if_stopping()
            return
        self._channel = HorseChannel()
        super().fork_work_horse(job, queue)
        self._channel.keep_worker_end(self.horse_pid)

    def _hand_over(self, job: Job, queue: Queue) -> bool:
        if self._channel is None or self.execution is None:
            return False
        if self._channel.hand(Order(job_id=job.id, queue=queue.name, execution_id=self.execution.id)):
            self._horse_pid = self._channel.horse_pid
            return True
        self._end_idle_horse()
        return False

    def perform_job(self, job: Job, queue: Queue) -> bool:
        """In the horse: one job after the other, for as long as they end well.

        Reconciliation comes at the start and then once an hour: its horse would be kept for nothing.
        """
        end = self._channel.horse_end() if self._channel else None
        ended_well = super().perform_job(job, queue)
        while end and ended_well and job.func_name != messages.RECONCILE and (order := end.next_order()):
            close_old_connections()
            self.execution = Execution(order.execution_id, order.job_id, self.connection, self.name)
            job = self.job_class.fetch(order.job_id, self.connection, self.serializer)
            queue = next(queue for queue in self.queues if queue.name == order.queue)
            ended_well = super().perform_job(job, queue)
        return ended_well

    def wait_for_horse(self) -> Any:
        if self._channel and not self._horse_is_killed and self._channel.wait_for_done():
            return self.horse_pid, os.EX_OK, None
        ended = super().wait_for_horse()
        self._close_channel()
        return ended

    def kill_horse(self, *args: Any, **kwargs: Any) -> None:
        super().kill_horse(*args, **kwargs)
        self._horse_is_killed = True

    def run_maintenance_tasks(self) -> None:
        """Every few seconds, between jobs: an idle worker does not keep the memory of a horse for long."""
        if self._channel and self._channel.too_old:
            self._end_idle_horse()
        super().run_maintenance_tasks()

    def teardown(self) -> None:
        if self.horse_pid:
            self._close_channel()  # it finishes its job, and ends
        else:
            self._end_idle_horse()
        super().teardown()

    def _end_idle_horse(self) -> None:
        channel, self._channel = self._channel, None
        if channel:
            channel.kill_idle_horse()

    def _close_channel(self) -> None:
        # Forgotten first: RQ's alarm may interrupt between the two.
        channel, self._channel = self._channel, None
        if channel:
            channel.close()
