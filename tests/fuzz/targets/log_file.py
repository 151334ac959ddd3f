"""The output of a job and what is noted beside it, as `sublet logs` reads them.

the note (`.cut`), 0x1e, the output; the first byte of the output says where a hole is made
"""

import os

from fuzz import scratch
from fuzz.driver import Target
from sublet.client.logs import Log
from sublet.keeper import output_files

_HOLE = 1 << 16


def target() -> Target:
    path = scratch.directory() / "1.1.log"
    note = path.with_name(f"{path.name}.cut")

    def feed(data: bytes) -> None:
        left_out, _, output = data.partition(b"\x1e")
        note.write_bytes(left_out)
        with path.open("wb") as file:
            file.write(output)
            if output[:1] > b"\x80":
                # As its keeper leaves the middle out.
                file.write(bytes(2 * _HOLE) + output)
                file.flush()
                output_files.punch(file.fileno(), _HOLE, _HOLE)
        size = path.stat().st_size
        for lines in (None, 0, 1, 10):
            with Log.open(path) as log:
                if lines is not None:
                    log.seek_lines(lines)
                pieces = list(log.read())
                assert sum(len(one) for one in pieces if isinstance(one, bytes)) <= size
                assert all(one.size > 0 for one in pieces if isinstance(one, output_files.Gap))
        output_files.SizeLimit([str(path)], _HOLE).close()
        assert os.path.getsize(path) >= 0

    seeds = (
        b"\x1eepoch 1\nepoch 2\n",
        b'{"start": 8, "size": 100}\x1eepoch 1\nepoch 2\nno end',
        b"\x1e\x90binary\0\xff\n" * 20,
    )
    return Target(feed, seeds)
