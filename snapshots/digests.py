"""One number for all that an app has of a repository, so that both sides can tell whether they have the same.

The digest is the sum modulo 2^256, in 64 hex digits, of SHA-256(length of the path's bytes as 8 bytes big-endian, those
bytes, the 32 bytes of the content's SHA-256) over every file that the app has. A sum can be kept up to date at the cost
of the change, in any order. It finds loss and bugs; it is no proof against somebody who chooses the contents.

It stands on the watch beside the number of files, and is written in the transaction that records what was
acknowledged, under the lock of the watch's row.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

_MODULUS = 1 << 256
PathAndHash = tuple[bytes, bytes]
"""The bytes of a path, and the SHA-256 of the content."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """What an app has, as two numbers."""

    files: int = 0
    digest: str = "0" * 64

    def changed(self, *, plus: Iterable[PathAndHash] = (), minus: Iterable[PathAndHash] = ()) -> "Holdings":
        """The holdings after these files are added and those are removed. Both are read one by one."""
        files, total = self.files, int(self.digest, 16)
        for path, sha256 in plus:
            files, total = files + 1, total + _term(path, sha256)
        for path, sha256 in minus:
            files, total = files - 1, total - _term(path, sha256)
        return Holdings(files, f"{total % _MODULUS:064x}")


def of_files(files: Iterable[PathAndHash]) -> Holdings:
    return Holdings().changed(plus=files)


def _term(path: bytes, sha256: bytes) -> int:
    return int.from_bytes(hashlib.sha256(len(path).to_bytes(8, "big") + path + sha256).digest())
