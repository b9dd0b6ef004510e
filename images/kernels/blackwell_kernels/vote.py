"""Steps that all ranks take or none: after each one every rank learns how it went for the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from blackwell_kernels.errors import GroupError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_DONE = b"\0"
T = TypeVar("T")


class Vote:
    """An exchange of bytes with what a joint decision needs.

    Args:
        group_size: Number of ranks.
        exchange: All-gather of bytes, in the order of ranks.
    """

    def __init__(self, group_size: int, exchange: Callable[[bytes], Sequence[bytes]]) -> None:
        self._group_size = group_size
        self._exchange = exchange

    def gather(self, data: bytes) -> list[bytes]:
        """What every rank sent, in the order of ranks.

        Raises:
            GroupError: The exchange failed, or did not answer for every rank.
        """
        try:
            answers = list(self._exchange(data))
        except (RuntimeError, OSError, EOFError, ValueError) as error:
            raise GroupError(f"the exchange between ranks failed: {error}") from error
        if len(answers) != self._group_size:
            raise GroupError(f"the exchange answered for {len(answers)} ranks of {self._group_size}")
        return answers

    def agree(self, what: str, step: Callable[[], T]) -> T:
        """Take a step, and go on only if every rank could.

        Args:
            what: What it means when a rank cannot, for the message.
            step: Must not exchange, unless every rank reaches the exchange or none.

        Raises:
            GroupError: Some rank failed; names each of them with its reason.
        """
        result, reason = None, b""
        try:
            result = step()
        except GroupError:
            raise
        except (RuntimeError, ValueError, OSError) as error:
            reason = f"{type(error).__name__}: {error}".encode()
        answers = self.gather(reason or _DONE)
        failed = [
            f"rank {rank}: {answer.decode('utf-8', 'replace')}"
            for rank, answer in enumerate(answers)
            if answer != _DONE
        ]
        if failed:
            raise GroupError(f"{what} ({'; '.join(failed)})")
        return result  # type: ignore[return-value]  # no reason, so the step returned
