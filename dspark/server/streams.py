"""Streams of frames that know what to do at their end, even if nothing of them was ever sent."""

from collections.abc import Callable, Generator, Iterator


class Frames:
    """`frames`, with `ended` called once on every way out. (A generator that never began runs no `finally`.)"""

    def __init__(self, frames: Generator[bytes], ended: Callable[[], object]) -> None:
        self._frames = frames
        self._ended: Callable[[], object] | None = ended

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._frames)
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """No more will be taken."""
        try:
            self._frames.close()
        finally:
            self._end()

    def _end(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()
