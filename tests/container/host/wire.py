"""A wire between engine and registry that counts its bytes and can be cut."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Wire:
    """A running wire.

    Attributes:
        host: `127.0.0.1:<port>`, to use in place of the registry's.
        moved: Bytes from the registry to the engine.
        cut_after: Bytes after which every connection is closed and none is taken; None: never.
    """

    host: str
    target: tuple[str, int]
    moved: int = 0
    cut_after: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_cut(self) -> bool:
        """Whether nothing goes through any more."""
        return self.cut_after is not None and self.moved >= self.cut_after

    def carry(self, client: socket.socket) -> None:
        """Join a client with the registry until one of them closes."""
        with client, socket.create_connection(self.target) as server:
            back = threading.Thread(target=self._pump, args=(server, client, True), daemon=True)
            back.start()
            self._pump(client, server, False)  # noqa: FBT003
            back.join()

    def _pump(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        with suppress(OSError):
            while not self.is_cut:
                data = source.recv(1 << 14)
                if not data:
                    break
                sink.sendall(data)
                if counts:
                    with self.lock:
                        self.moved += len(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def wire(registry: str) -> Iterator[Wire]:
    """A wire to a registry while the block runs."""
    host, _, port = registry.partition(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Wire(f"127.0.0.1:{listener.getsockname()[1]}", (host, int(port)))

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                if made.is_cut:
                    client.close()
                    continue
                threading.Thread(target=made.carry, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield made
        listener.shutdown(socket.SHUT_RDWR)
