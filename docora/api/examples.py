"""One example for each body of the OpenAPI document, by the name of its schema; a test holds it against the schema."""

from typing import Any

_WATCHED: dict[str, Any] = {
    "repository_id": "repo_5f2b1c0a9d8e7f6a5b4c3d2e",
    "github_url": "https://github.com/acme/handbook",
    "owner": "acme",
    "name": "handbook",
    "is_private": False,
    "created_at": "2026-01-31T09:29:58Z",
    "status": "pending_snapshot",
    "app_state": "enabled",
}
_COMMIT = "0ea84ecdc4a1b7f1c2d3e4f5a6b7c8d9e0f1a2b3"
_START = "1981343227e4bc9c2a0abf8692fae9d6ca7ab98e0b2fdebfb2972d72a31eb848"
_EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_DIGEST = "7d0f0c8e5a1b49c3f2e6d7a8b9c0d1e2f3a4b5c6d7e8f9011223344556677889"
_STATE: dict[str, Any] = _WATCHED | {
    "status": "synced",
    "branch": None,
    "ref_name": "main",
    "include": ["docs/**/*.md"],
    "exclude": [],
    "max_file_size": 1_000_000,
    "commit_sha": _COMMIT,
    "files": 1204,
    "bytes": 5_300_112,
    "last_checked_at": "2026-01-31T09:35:00Z",
    "synced_commit": _COMMIT,
    "synced_at": "2026-01-31T09:30:02Z",
    "retry_count": 0,
    "retry_at": None,
    "acknowledged": 311,
    "parked": 1,
    "digest": _DIGEST,
    "last_error": None,
    "circuit": {
        "status": "closed",
        "consecutive_failures": 0,
        "threshold": 5,
        "cooldown_until": None,
        "next_probe_at": None,
    },
}
_OPTIONS: dict[str, Any] = {"include": ["docs/**/*.md"], "exclude": ["drafts/"], "max_file_size": 1_000_000}
_FILE = {"path": "docs/start.md", "path_base64": None, "sha": _START, "size": 12}
_REPOSITORY = {name: _WATCHED[name] for name in ("repository_id", "github_url", "owner", "name")}
_ENDS = {"timestamp": "2026-01-31T09:30:00.000Z", "ref_name": "main", "noticed_at": "2026-01-31T09:29:59.650Z"}
_SENT = {"path": "docs/start.md", "sha": _START, "size": 12, "content": "Start here.\n"}
_OPEN = {
    "status": "open",
    "consecutive_failures": 5,
    "threshold": 5,
    "cooldown_until": "2026-01-31T10:00:00.000Z",
}

_HOOK_URL = "https://docora.example.com/hooks/hook_0d1c2b3a4f5e6d7c8b9a0f1e"
_HOOK_SECRET = "whsec_c2hvd24gb25jZSwgdGhlbiBuZXZlciBhZ2FpbiE="  # noqa: S105  an example
EXAMPLES: dict[str, dict[str, Any]] = {
    "NewHook": {
        "url": _HOOK_URL,
        "secret": _HOOK_SECRET,
        "previous_secret_until": None,
        "hosts": [
            {
                "host": "GitLab",
                "where": "Settings → Webhooks → Add new webhook",
                "fields": {"URL": _HOOK_URL, "Secret token (or Signing token)": _HOOK_SECRET, "Trigger": "Push events"},
            }
        ],
    },
    "HookState": {
        "url": _HOOK_URL,
        "created_at": "2026-01-31T09:29:58Z",
        "previous_secret_until": None,
        "accepted": 41,
        "ignored": 3,
        "refused": 1,
        "last_delivery": {
            "at": "2026-01-31T09:35:00Z",
            "id": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
            "event": "push",
            "outcome": "accepted",
        },
        "last_error": {"at": "2026-01-30T17:02:11Z", "message": "The proof is missing or wrong."},
    },
    "WatchRequest": {"github_url": _WATCHED["github_url"], "github_token": "github_pat_11ABC", **_OPTIONS},
    "EnsureRequest": {"github_url": _WATCHED["github_url"], **_OPTIONS},
    "OptionsRequest": {"exclude": ["drafts/", "*.png"]},
    "TokenRequest": {"github_token": "github_pat_11ABC"},
    "RotationRequest": {"overlap_seconds": 86_400},
    "AppChanges": {"base_url": "https://search.example.com/hooks", "events": ["sync_complete"]},
    "VerifyRequest": {"files": [{"path": "docs/start.md", "path_base64": None, "sha": _START}], "partial": True},
    "Verdict": {
        "equal": False,
        "commit_sha": _COMMIT,
        "files": 311,
        "digest": _DIGEST,
        "counts": {"missing": 0, "different": 1, "extra": 0, "pending": 0, "unknown": 0},
        "missing": [],
        "different": [{"path": "docs/start.md", "path_base64": None}],
        "extra": [],
        "pending": [],
        "unknown": [],
    },
    "WatchedRepository": _WATCHED,
    "RepositoryState": _STATE,
    "RepositoryDetails": _STATE | {"left_out": [{"path": "vendor/lib", "reason": "submodule", "size": None}]},
    "RepositoryPage": {"repositories": [_STATE], "next_cursor": None},
    "DryRun": {"commit_sha": _COMMIT, "files": 311, "bytes": 904_512},
    "Message": {"message": "Queued"},
    "FilePage": {"commit_sha": _COMMIT, "digest": _DIGEST, "files": [_FILE], "next_cursor": None},
    "ChangePage": {
        "changes": [_FILE | {"event": "updated", "previous_sha": _EMPTY, "commit_sha": _COMMIT}],
        "cursor": "WyIwYzRmZTJiN2E5ZDEiLCA3LCAyLCAxODgyXQ",
        "has_more": False,
    },
    "DeliveryPage": {
        "deliveries": [
            {
                "delivery_id": 48213,
                "id": 48213,
                "message_id": "msg_8c1f0e5b7a2d4c6e9f3b1a0d5e7c2b4f",
                "event": "update",
                "path": "docs/start.md",
                "piece": None,
                "pieces": None,
                "sha": _START,
                "commit_sha": _COMMIT,
                "status": 422,
                "accepted": False,
                "error": "422 Unprocessable Entity",
                "answer": '{"error": "no front matter"}',
                "milliseconds": 31,
                "attempted_at": "2026-01-31T09:30:01Z",
            }
        ],
        "next_cursor": None,
    },
    "AppDetails": {
        "app_id": "app_0d1c2b3a4f5e6d7c8b9a0f1e",
        "name": "Handbook search",
        "base_url": "https://search.example.com/hooks",
        "email": "search@example.com",
        "website": "https://search.example.com",
        "description": "",
        "max_in_flight": 8,
        "events": ["sync_complete"],
        "created_at": "2026-01-30T08:00:00Z",
        "watches": 12,
        "may_change_base_url": True,
        "previous_token_until": None,
        "disabled_at": None,
        "disabled_reason": None,
    },
    "TokenRotationRequest": {"overlap_seconds": 86_400},
    "RotatedToken": {
        "bearer_token": "docora_" + "0123456789abcdef" * 4,
        "previous_token_until": "2026-02-01T09:30:00Z",
    },
    "RotatedKey": {
        "webhook_key": "kq4nX2m8vT0sZb6yWc1rE9uJfA7pLd3hGoYi5tQxVwM",
        "previous_key_until": "2026-02-01T09:30:00Z",
    },
    "PingResult": {"accepted": True, "status": 204, "error": None, "answer": None, "milliseconds": 12},
    "Problem": {
        "type": "about:blank",
        "title": "Unprocessable Entity",
        "status": 422,
        "detail": "exlude: this call has no such field",
        "error": "exlude: this call has no such field",
        "code": "malformed",
        "errors": [{"field": "exlude", "message": "this call has no such field"}],
    },
    "CreatePayload": {"repository": _REPOSITORY, "file": _SENT, "commit_sha": _COMMIT, **_ENDS},
    "UpdatePayload": {
        "repository": _REPOSITORY,
        "file": _SENT,
        "previous_sha": _EMPTY,
        "commit_sha": _COMMIT,
        **_ENDS,
    },
    "DeletePayload": {
        "repository": _REPOSITORY,
        "file": {"path": "docs/start.md", "sha": _START},
        "commit_sha": _COMMIT,
        **_ENDS,
    },
    "SyncFailedPayload": {
        "event": "sync_failed",
        "repository": _REPOSITORY,
        "error": {"type": "git_failure", "message": "The repository could not be read: its host does not answer."},
        "circuit_breaker": _OPEN,
        "retry_count": 5,
        **_ENDS,
    },
    "SyncRecoveredPayload": {
        "event": "sync_recovered",
        "repository": _REPOSITORY,
        "circuit_breaker": {"status": "closed", "consecutive_failures": 0, "threshold": 5, "cooldown_until": None},
        **_ENDS,
    },
    "SyncCompletePayload": {
        "event": "sync_complete",
        "repository": _REPOSITORY,
        "commit_sha": _COMMIT,
        "previous_commit_sha": None,
        "counts": {"created": 311, "updated": 0, "deleted": 0, "parked": 1, "left_out": 0},
        "files": 311,
        "digest": _DIGEST,
        "times": {
            "noticed_at": _ENDS["noticed_at"],
            "fetched_at": "2026-01-31T09:29:59.840Z",
            "first_acknowledged_at": "2026-01-31T09:29:59.912Z",
            "last_acknowledged_at": "2026-01-31T09:29:59.990Z",
        },
        **_ENDS,
    },
    "PingPayload": {"event": "ping", "app_id": "app_0d1c2b3a4f5e6d7c8b9a0f1e", "timestamp": _ENDS["timestamp"]},
}
