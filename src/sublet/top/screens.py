"""What is shown above everything else: help, a job's facts, and questions."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

HELP = """\
sublet top: who holds the devices, who waits, and why

  up down  j k    choose a job             enter  all about it
  PgUp PgDn g G   move further             l      follow its output
  c               cancel it (asks first)   p      pause it, or resume it
  s  S            sort; backwards          f      all, running, waiting, ended
  /               search as you type       esc    back; forget the search
  d               plot the next device     w      another span of time
  ?               this help                q      quit
  tab             to the output, to scroll it, and back

  █ used      of what is leased: what the programs hold
  ▓ leased    promised to programs, with what each process costs
  ▒ nursery   warm processes that start programs
  ░ others    programs without a lease
  · free

Alike jobs of an array or cluster share a line, and c and p mean all."""


class Sheet(ModalScreen[None]):
    """A text that any of these keys closes."""

    BINDINGS: ClassVar = [Binding("escape,q,enter,question_mark,space", "dismiss", show=False)]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="sheet"):
            yield Static(self._text, markup=False)


class Question(ModalScreen[bool]):
    """A question that is answered with y or n."""

    BINDINGS: ClassVar = [
        Binding("y", "answer(True)", show=False),
        Binding("n,escape,q", "answer(False)", show=False),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        yield Static(f"{self._text}\n\ny  yes    n  no", markup=False, classes="sheet question")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)
