"""Few descriptors: our processes raise their limit; programs have the one they were given."""

import json
import resource
from collections.abc import Callable

from support.sandbox import Sandbox

NewSandbox = Callable[..., Sandbox]
_FEW = 256

POOLS = """
import json, resource, sublet

def limit(_):
    return resource.getrlimit(resource.RLIMIT_NOFILE)

if __name__ == "__main__":
    with sublet.Pool(40, memory="64MiB") as one, sublet.Pool(40, memory="64MiB") as other:
        futures = [pool.submit(limit, 0) for _ in range(40) for pool in (one, other)]
        print(json.dumps([future.result() for future in futures]))
"""

MANY_FILES = """
import os, resource, sublet
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = [os.dup(0) for _ in range(1100)]
print(sublet.run(["true"], memory="64MiB").code)
"""


def test_two_pools_have_more_workers_than_the_soft_limit_allows(new_sandbox: NewSandbox) -> None:
    """Five descriptors for each of them, here and in the broker."""
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="2GiB")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    script = sandbox.write("pools.py", POOLS)

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_FEW, hard))

    answer = sandbox.python(script, preexec_fn=few)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout) == [[_FEW, hard]] * 80


def test_a_program_is_run_from_a_process_with_a_thousand_open_files(sandbox: Sandbox) -> None:
    answer = sandbox.python(sandbox.write("many.py", MANY_FILES))
    assert answer.stdout == "0\n", answer.stderr
