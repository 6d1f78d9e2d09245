"""A worker whose work horse, the fork that runs a job, stays for the next job. docs/decisions/0006 says why.

Nothing else depends on it: with `docora.processes.worker.Worker` as WORKER_CLASS in the settings, each job gets a fork
of its own, and this package can be deleted, with tests/journeys/test_work_horses.py.
"""

from docora.processes.kept_horse.worker import HorseKeepingWorker

__all__ = ["RQ_INTERNALS", "HorseKeepingWorker"]

RQ_INTERNALS = {
    "_horse_pid": "set when a kept horse takes a job: RQ itself sets it at a fork, and to 0 when a job has ended",
    "execution": "made anew in the horse, where RQ expects the one that the worker made before its fork",
    "dequeue_timeout": "asked for before each job: shorter in a worker without a horse",
    "connection_timeout": "asked for when the worker is made: for the longer one of the two",
    "fork_work_horse": "called by execute_job in the worker; gives the job to the kept horse, if there is one",
    "perform_job": "called once in the horse; goes on with further jobs",
    "wait_for_horse": "called by monitor_work_horse, again after each alarm; returns when a job is done",
    "kill_horse": "called when a job or the worker is to end at once; then the end of the process is waited for",
    "run_maintenance_tasks": "called by work between jobs; ends a horse that is too old",
}
"""What this package relies on in RQ's worker beyond its documentation, and how."""
