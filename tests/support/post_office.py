"""A small real SMTP server on 127.0.0.1, which keeps the letters that it takes."""

import socketserver
import threading
from dataclasses import dataclass
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Self


@dataclass(frozen=True)
class Letter:
    sender: str
    recipients: list[str]
    content: EmailMessage


class PostOffice:
    """`refuses` is the command that is answered with an error: MAIL, RCPT or DATA."""

    def __init__(self) -> None:
        self.letters: list[Letter] = []
        self.refuses = ""
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Clerk)
        self._server.daemon_threads = True
        setattr(self._server, "office", self)  # noqa: B010  no attribute of its class
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="post office")

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


class _Clerk(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        office: PostOffice = getattr(self.server, "office")  # noqa: B009  no attribute of its class
        sender, recipients = "", list[str]()
        self._say("220 ready")
        while line := self.rfile.readline().decode().strip():
            command = line[:4].upper()
            if command == office.refuses:
                self._say("550 not here")
            elif command == "DATA":
                self._say("354 go on")
                content = message_from_bytes(self._read_content(), policy=policy.default)
                office.letters.append(Letter(sender, recipients, content))
                self._say("250 taken")
            elif command == "QUIT":
                self._say("221 bye")
                return
            else:
                if command == "MAIL":
                    sender, recipients = _address(line), []
                elif command == "RCPT":
                    recipients.append(_address(line))
                self._say("250 ok")

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())

    def _read_content(self) -> bytes:
        lines = []
        while (line := self.rfile.readline()) not in {b".\r\n", b""}:
            lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
        return b"".join(lines)


def _address(line: str) -> str:
    return line.partition("<")[2].partition(">")[0]
