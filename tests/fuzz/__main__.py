"""`python -m fuzz NAME|all SECONDS [SEED]`: run targets for long, with new inputs each time."""

import random
import sys
import traceback

from fuzz import driver


def main() -> int:
    known = driver.names()
    if len(sys.argv) < 3 or sys.argv[1] not in (*known, "all"):
        print(f"python -m fuzz NAME SECONDS [SEED]; NAME is all or: {', '.join(known)}")
        return 2
    chosen = known if sys.argv[1] == "all" else [sys.argv[1]]
    seconds = float(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 32)
    faults = 0
    for name in chosen:
        try:
            fed = driver.run(name, seconds, seed)
        except driver.Fault as fault:
            faults += 1
            traceback.print_exception(fault)
            print(f"{name}: FAULT; the input is kept in {driver.keep(name, fault.data)}")
        else:
            print(f"{name}: {fed} inputs of seed {seed}, no fault", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
