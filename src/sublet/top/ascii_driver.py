"""A driver for terminals that know ASCII alone: whatever is drawn, nothing else is written."""

from textual.drivers.linux_driver import LinuxDriver

from sublet.text import in_ascii
from sublet.views.table import text_width


class AsciiDriver(LinuxDriver):
    """Writes one ASCII sign for each column that a sign would take."""

    def write(self, data: str) -> None:
        """Write this with the signs that ASCII has."""
        if not data.isascii():
            data = "".join(in_ascii(one) * text_width(one) for one in data)
        super().write(data)
