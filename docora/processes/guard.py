"""Ends the processes of a run whose supervisor was killed.

Started by the supervisor as `python -m docora.processes.guard PIPE RUN STORE`. The supervisor alone holds the other end
of the pipe, which the kernel closes when it ends, in whatever way; after an orderly stop nothing is left.
STORE is the scope of the embedded Valkey, which goes last, so that the others can still write to it.
"""

import os
import signal
import sys

from docora.processes import marks
from docora.processes.signals import STOPPING

PATIENCE = 3.0
"""Seconds to end by oneself: enough when idle; the job of a killed worker is put back at the next start."""


def main(pipe: str, run: str, store: str) -> None:
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    os.read(int(pipe), 1)
    marks.end(run, patience=PATIENCE, sparing=store)
    marks.end(run, patience=PATIENCE)


if __name__ == "__main__":
    main(*sys.argv[1:])
