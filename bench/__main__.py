"""`python -m bench`: measure, print, write."""

import argparse
import importlib
import signal
import sys
import time

from bench import machine, processes, report

NAMES = (
    "startup",
    "jobs",
    "memory",
    "rest",
    "page",
    "step",
    "plan",
    "queue",
    "sizing",
    "elastic",
    "fence",
    "split",
    "parts",
    "sweeps",
    "classes",
    "pool",
    "ray",
    "threads",
    "serving",
    "connect",
    "paging",
    "fairness",
    "reload",
)


def main() -> int:
    """Run the named benchmarks; 1 if something could not be measured. A bar missed is a result."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="|".join(NAMES), help="default: all")
    parser.add_argument("--quick", action="store_true", help="a few runs each: is it all working?")
    asked = parser.parse_args()
    for name in asked.names:
        if name not in NAMES:
            parser.error(f"{name!r} is none of {', '.join(NAMES)}")
    processes.adopt_orphans()
    # As an exception, so that households are ended on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failed = False
    names = asked.names or NAMES
    for name in names:
        facts = machine.facts()
        print(f"== {name} == {machine.line(facts)}\n", flush=True)
        # Later ones would only see what the earlier ones did.
        if facts["load_before"] > facts["cores"] / 2 and name == names[0]:
            print("The machine is busy: only the ratios mean something, and not much.\n")
        began = time.monotonic()
        try:
            result: report.Result = importlib.import_module(f"bench.{name}").measure(asked.quick)
        except processes.Failed as trouble:
            print(f"could not be measured: {trouble}\n", file=sys.stderr)
            failed = True
            continue
        finally:
            processes.end_all()
        failed = failed or bool(result.failures)
        print(result.render())
        report.write(result.document(facts, asked.quick))
        took = time.monotonic() - began
        print(f"\n({took:.0f} s{', quick: only shows that it works' if asked.quick else ''})\n")
    return int(failed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped")
