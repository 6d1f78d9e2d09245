"""What a careful receiver checks before it believes a webhook: both signatures, over exactly these bytes."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

# How far a message's clock may be from the receiver's.
TOLERANCE_SECONDS = 300


def stringify(parsed: Any) -> bytes:
    """What JavaScript's JSON.stringify(parsed) prints, for the strings, integers and objects of a webhook."""
    return json.dumps(parsed, ensure_ascii=False, separators=(",", ":")).encode()


def docora_signature(key: str, timestamp: str, body: bytes) -> str:
    return "sha256=" + _hmac(key, timestamp.encode() + b"." + body).hexdigest()


def standard_signature(key: str, message_id: str, timestamp: str, body: bytes) -> str:
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(_hmac(key, signed).digest()).decode()


def _hmac(key: str, message: bytes) -> hmac.HMAC:
    return hmac.new(key.encode(), message, hashlib.sha256)


def signature_problems(headers: Mapping[str, str], body: bytes, keys: Collection[str]) -> Iterator[str]:
    """What is wrong with a message; nothing if it may be believed. Header names in lower case."""
    yield from _docora_problems(headers, body, keys)
    if "webhook-id" in headers:
        yield from _standard_problems(headers, body, keys)


def _docora_problems(headers: Mapping[str, str], body: bytes, keys: Collection[str]) -> Iterator[str]:
    timestamp, signature = headers.get("x-docora-timestamp", ""), headers.get("x-docora-signature", "")
    if not _is_recent(timestamp):
        yield f"X-Docora-Timestamp is {timestamp!r}, which is not about now"
    if not any(_same(docora_signature(key, timestamp, body), signature) for key in keys):
        yield "X-Docora-Signature does not match the body"
    elif _rebuilt(body) != body:
        yield "X-Docora-Signature does not match the body rebuilt by JSON.stringify"


def _standard_problems(headers: Mapping[str, str], body: bytes, keys: Collection[str]) -> Iterator[str]:
    message_id, timestamp = headers["webhook-id"], headers.get("webhook-timestamp", "")
    if not _is_recent(timestamp):
        yield f"webhook-timestamp is {timestamp!r}, which is not about now"
    expected = [standard_signature(key, message_id, timestamp, body) for key in keys]
    given = headers.get("webhook-signature", "").split()
    if not any(_same(ours, theirs) for ours in expected for theirs in given):
        yield "webhook-signature does not match the body"


def _same(ours: str, theirs: str) -> bool:
    return hmac.compare_digest(ours.encode(), theirs.encode())


def _is_recent(timestamp: str) -> bool:
    return timestamp.isdecimal() and abs(time.time() - int(timestamp)) <= TOLERANCE_SECONDS


def _rebuilt(body: bytes) -> bytes:
    """The body as a receiver has it that signs what its framework parsed; empty if that is impossible."""
    try:
        return stringify(json.loads(body))
    except ValueError:
        return b""
