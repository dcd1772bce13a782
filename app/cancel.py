"""The signal that asks a turn to stop: set once with a cause, then only looked at or waited for."""

import asyncio
from collections.abc import Callable
from contextlib import suppress


class CancelSignal:
    """One turn's wish to stop. The first cause stays; after `retire` nothing can set it any more.

    Setting it never cancels a task and never interrupts a write: whoever works looks at it, or waits for it.
    `is_cancelled` and `cause` may be read from any thread; everything else belongs to the event loop's thread.
    """

    def __init__(self) -> None:
        self._cause: str | None = None
        self._retired = False
        self._event = asyncio.Event()
        self._callbacks: list[Callable[[], object]] = []

    @property
    def is_cancelled(self) -> bool:
        return self._cause is not None

    @property
    def cause(self) -> str | None:
        """What `cancel` was given first, or None."""
        return self._cause

    def cancel(self, cause: str = "user") -> None:
        """Set the signal, unless it is set or retired already."""
        if self._cause is not None or self._retired:
            return
        self._cause = cause
        self._event.set()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def retire(self) -> None:
        """The turn has ended: a later `cancel` has nothing to stop."""
        self._retired = True

    async def wait(self) -> None:
        """Return when the signal is set; for ever, if it never is."""
        await self._event.wait()

    async def wait_for(self, seconds: float) -> None:
        """Return when the signal is set, or after `seconds`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)

    def call_when_cancelled(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` once when the signal is set (now, if it is). Returns what takes the wish back."""
        if self._cause is not None:
            callback()
            return lambda: None
        self._callbacks.append(callback)

        def forget() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return forget

    def __repr__(self) -> str:
        return f"<CancelSignal: {'set, ' + self._cause if self._cause is not None else 'not set'}>"
