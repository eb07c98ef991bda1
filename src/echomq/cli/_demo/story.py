"""What is on the screen while the demo runs: what was killed, what came back, and why nothing is lost."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table


class Story:
    """Tells it, as long as it is used as a context manager.

    Args:
        quiet: tell nothing, for ``--json``.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(quiet=quiet, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._queue: TaskID | None = None
        self._naive: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """One or more lines, in rich's markup."""
        # A file or a pipe has no width to fold the text to.
        self.console.print(text, soft_wrap=not self.console.is_terminal)

    def warn(self, text: str) -> None:
        """What the user should know even with ``--json``, on standard error."""
        Console(stderr=True, highlight=False).print(f"echomq demo: {text}", markup=False, soft_wrap=True)

    def expect(self, jobs: int, naive: int) -> None:
        """How many jobs and list items there will be."""
        self._queue = self._progress.add_task("[green]EchoMQ", total=jobs, note="")
        self._naive = self._progress.add_task("[red]plain list", total=naive, note="")

    def progress(self, finished: int, note: str, naive_done: int, naive_note: str) -> None:
        """How far both are."""
        if self._queue is not None and self._naive is not None:
            self._progress.update(self._queue, completed=finished, note=note)
            self._progress.update(self._naive, completed=naive_done, note=naive_note)

    def killed(self, who: str, held: int, successor: int) -> None:
        """A worker was killed."""
        self.say(
            f"[red]✗[/] {who} killed while it held {_jobs(held)}. They stay in [bold]active[/], under locks that "
            f"nobody renews now. Worker {successor} takes its place."
        )

    def frozen(self, who: str, held: int) -> None:
        """A worker was frozen."""
        self.say(f"[cyan]❄[/] {who} frozen (SIGSTOP) with {_jobs(held)}: not dead, but it renews no lock either.")

    def thawed(self, who: str, after: float) -> None:
        """A worker goes on."""
        self.say(
            f"[cyan]☀[/] {who} goes on (SIGCONT) after {after:.1f} s, and does not know. Whatever it finishes now of its "
            "old jobs is refused: the locks are no longer its own."
        )

    def came_back(self, who: str, count: int, after: float) -> None:
        """All that a worker held was started by another."""
        self.say(
            f"[green]↺[/] {_jobs(count).capitalize()} of {who} run again, the last {after:.1f} s later: the sweep found "
            "them without a lock."
        )

    def naive_killed(self, pid: int, item: str) -> None:
        """The list's consumer was killed."""
        self.say(
            f"[yellow]✗ plain list:[/] consumer (pid {pid}) killed while it held [bold]{escape(item)}[/]. BLPOP had taken "
            "it off the list; nobody has it now."
        )

    def audit(self, rows: Mapping[str, tuple[object, object]], notes: list[str]) -> None:
        """The end: what each of both did, and what there is to say about it."""
        table = Table(title="Audit", title_justify="left", title_style="bold")
        table.add_column("")
        table.add_column("EchoMQ", justify="right", style="green")
        table.add_column("plain list", justify="right", style="yellow")
        for label, values in rows.items():
            table.add_row(label, *(f"{value:,}" if isinstance(value, int) else str(value) for value in values))
        self.console.print(table)
        for note in notes:
            self.say(note)


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
