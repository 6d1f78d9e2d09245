"""Takes secrets out of text that comes from outside, in every form in which a host may send them back."""

import base64
import re
import string
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from urllib.parse import quote

_HIDDEN = "[hidden]"
# Pieces of a secret that have this many characters are hidden: a host may have cut what it sends back.
_SHORTEST_PIECE = 6
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)  # keeps every character at its place
_AUTHORIZATION = re.compile(r"authorization\b.*", re.IGNORECASE)
_URL_CREDENTIALS = re.compile(r"://[^/\s@]+@")
# Tokens that can be told by their beginning: our own, GitHub's, GitLab's, and keys of webhooks.
_TOKEN = re.compile(
    r"\b(?:docora_[0-9a-f]{64}|gh[oprsu]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|whsec_[\w+/=]{16,})"
)


def redact(text: str, secret: str = "") -> str:
    """The text without the secret or a piece of it, authorization headers, credentials in URLs, and known tokens."""
    if secret:
        text = _hide_pieces(text, secret)
    return _TOKEN.sub(_HIDDEN, _URL_CREDENTIALS.sub("://", _AUTHORIZATION.sub(_HIDDEN, text)))


def _hide_pieces(text: str, secret: str) -> str:
    folded = text.translate(_LOWER)
    pieces = _pieces(secret)
    hidden = bytearray(len(text))
    for size in {len(piece) for piece in pieces}:
        for start in range(len(text) - size + 1):
            if folded[start : start + size] in pieces:
                hidden[start : start + size] = b"\1" * size
    runs = groupby(zip(hidden, text, strict=True), key=lambda pair: pair[0])
    return "".join(_HIDDEN if is_hidden else "".join(char for _, char in run) for is_hidden, run in runs)


@lru_cache(maxsize=2)  # a token, and the password of a proxy
def _pieces(secret: str) -> frozenset[str]:
    return frozenset(
        form[start : start + _SHORTEST_PIECE].translate(_LOWER)
        for form in _forms(secret)
        for start in range(max(1, len(form) - _SHORTEST_PIECE + 1))
    )


def _forms(secret: str) -> Iterator[str]:
    raw = secret.encode()
    yield from (secret, quote(secret, safe=""), raw.hex())
    # What stands before the secret, such as a user's name, decides where its bytes fall in a base64 text.
    for before in (b"", b"\0", b"\0\0"):
        yield base64.b64encode(before + raw).decode().rstrip("=")
        yield base64.urlsafe_b64encode(before + raw).decode().rstrip("=")
