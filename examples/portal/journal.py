"""What a process notes about its work, so that another can tell what it held when it died: a file survives its writer."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path


class Journal:
    """Writes the journal of this process. Threads may share it: each note is one write."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def started(self, job_id: str) -> None:
        """Notes that the handler was called for this job."""
        self._note("started", job_id)

    def answered(self, job_id: str, answer: str) -> None:
        """Notes what the effect answered."""
        self._note("answered", job_id, answer)

    def done(self, job_id: str) -> None:
        """Notes that the handler returns; what remains is to tell the queue."""
        self._note("done", job_id)

    def _note(self, *words: str) -> None:
        os.write(self._file, (" ".join(words) + "\n").encode())


@dataclass
class Reader:
    """Reads another process's journal, while that process writes it or after its death.

    Attributes:
        started: how many handlers were called.
        answers: what the effect answered, by job.
    """

    path: Path
    started: int = 0
    answers: dict[str, str] = field(default_factory=dict)
    _calls: Counter[str] = field(default_factory=Counter)  # of handlers that have not returned: a job may have two
    _offset: int = 0

    @property
    def held(self) -> set[str]:
        """The jobs whose handlers were called and have not returned."""
        return set(self._calls)

    def refresh(self) -> list[str]:
        """Reads what was written since the last time, and gives the jobs started in it."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:  # not yet
            return []
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        started = []
        for line in whole.decode().splitlines():
            match line.split(" "):
                case ["started", job_id]:
                    started.append(job_id)
                    self._calls[job_id] += 1
                case ["answered", job_id, answer]:
                    self.answers[job_id] = answer
                case ["done", job_id]:
                    self._calls[job_id] -= 1
                    if not self._calls[job_id]:
                        del self._calls[job_id]
        self.started += len(started)
        return started
