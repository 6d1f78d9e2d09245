"""Paths as git has them (any bytes but NUL) and as they are shown and sent (text)."""

import base64
import hashlib
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GitPath:
    raw: bytes

    @classmethod
    def of_row(cls, text: str, raw: bytes | memoryview | None) -> "GitPath":
        """As the database has it: the exact bytes are stored only where they are not UTF-8."""
        return cls(text.encode() if raw is None else bytes(raw))

    @classmethod
    def from_text(cls, text: str) -> "GitPath":
        """The path that `text` shows, if it has bytes that are not UTF-8."""
        return cls(
            _ESCAPED.sub(lambda escape: chr(0xDC00 + int(escape[1], 16)), text).encode("utf-8", "surrogateescape")
        )

    @classmethod
    def all_shown_as(cls, text: str) -> "list[GitPath]":
        """Every path that `text` may stand for. One whose name really has such a text in it comes first."""
        return list(dict.fromkeys([cls(text.encode()), cls.from_text(text)]))

    @property
    def text(self) -> str:
        """The path as text; bytes that are not UTF-8 appear as %XX, and `is_text` is false then."""
        try:
            return self.raw.decode("utf-8")
        except UnicodeDecodeError:
            return self.raw.decode("utf-8", "surrogateescape").translate(_ESCAPES)

    @property
    def is_text(self) -> bool:
        try:
            self.raw.decode("utf-8")
        except UnicodeDecodeError:
            return False
        return True

    @property
    def exact(self) -> str | None:
        """The bytes in base64, where `text` does not say them."""
        return None if self.is_text else base64.b64encode(self.raw).decode()

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.raw).digest()


_ESCAPES = {0xDC00 + byte: f"%{byte:02X}" for byte in range(0x80, 0x100)}
_ESCAPED = re.compile("%([89A-F][0-9A-F])")
