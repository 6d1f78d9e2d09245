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


@dataclass(frozen=True, slots=True)
class Holdings:
    """What an app has, as two numbers."""

    files: int = 0
    digest: str = "0" * 64

    def plus(self, path: bytes, sha256: bytes) -> "Holdings":
        return self._moved(1, _term(path, sha256))

    def minus(self, path: bytes, sha256: bytes) -> "Holdings":
        return self._moved(-1, -_term(path, sha256))

    def _moved(self, files: int, number: int) -> "Holdings":
        return Holdings(self.files + files, f"{(int(self.digest, 16) + number) % _MODULUS:064x}")


def of_files(files: Iterable[tuple[bytes, bytes]]) -> Holdings:
    """Of these paths with the SHA-256 of their contents, read one by one."""
    count = total = 0
    for path, sha256 in files:
        count += 1
        total += _term(path, sha256)
    return Holdings(count, f"{total % _MODULUS:064x}")


def _term(path: bytes, sha256: bytes) -> int:
    return int.from_bytes(hashlib.sha256(len(path).to_bytes(8, "big") + path + sha256).digest())
