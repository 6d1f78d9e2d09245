"""The whole path from outside: from a commit on a git server to the last acknowledgement of a receiver.

    make bench-path
    python -m benchmarks.path --help

Everything is real and runs on 127.0.0.1: a git server, `manage.py up` in a folder of its own, a receiver that verifies
every signature and every hash, the HTTP API. Each row stands beside a reference that is measured in the same run.
Only `inside.py` imports Docora.
"""
