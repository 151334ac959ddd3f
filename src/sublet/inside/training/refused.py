"""What a training cannot be started with."""


class Refused(Exception):
    """The request cannot be met, and nothing was changed: what is wrong, and what to do next."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{message} {hint}")
        self.message = message
        self.hint = hint
