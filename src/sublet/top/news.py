"""What the threads tell the application."""

from textual.message import Message

from sublet.client.snapshot_feed import View
from sublet.serving.metrics import Row


class Seen(Message):
    """The broker's view has changed."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self.view = view


class Lost(Message):
    """The broker has gone."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why


class Served(Message):
    """The models that are served have changed."""

    def __init__(self, rows: list[Row]) -> None:
        super().__init__()
        self.rows = rows
