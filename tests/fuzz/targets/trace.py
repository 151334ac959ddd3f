"""Traces of jobs, as `sublet replay` reads them."""

from fuzz import scratch
from fuzz.driver import Target
from sublet.errors import BadRequest
from sublet.tools.replay import trace
from sublet.units import GiB

_SEEDS = (
    b"submit,duration,memory\n0,10,6GiB\n5.5,1e3,40%\n",
    b"submit,duration,memory,gpus,priority\n0,10,6GiB,1,high\n3,4,100%,2,low\n-1,2,1g,1,normal\n",
    b"timestamp,duration,num_gpus,gpu_time,cluster\n"
    b"2017-10-03 05:35:57,120,1,120,a\n2017-10-04T05:35:57,7,4,28,b\n",
    b'submit,duration,memory\n0,10,"6GiB"\n"1\n",2,1g\n',
)


def target() -> Target:
    path = scratch.directory() / "trace.csv"

    def feed(data: bytes) -> None:
        path.write_bytes(data)
        try:
            rows = trace.read(path)
            trace.jobs(rows, 80 * GiB, 2.0, seed=1)
            trace.usual_cluster(rows, 4)
        except BadRequest as wrong:
            if not (wrong.message and wrong.hint):
                raise

    return Target(feed, _SEEDS)
