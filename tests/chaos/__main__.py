"""`python -m chaos MINUTES [SEED [FAULTS]]`: run the loop and print what broke."""

import secrets
import sys

from chaos.faults import ACTS
from chaos.storm import Storm


def main() -> int:
    minutes = float(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else secrets.randbelow(1 << 32)
    acts = sys.argv[3].split(",") if len(sys.argv) > 3 else list(ACTS)
    storm = Storm(seed, lambda line: print(line, flush=True), acts)
    print(f"seed {seed}, {minutes:g} minutes, in {storm.root}", flush=True)
    broken = storm.run(60 * minutes)
    for name, value in storm.table:
        print(f"{name:>28}  {value}")
    for one in broken:
        print(f"BROKEN  {one}")
    kept = storm.close()
    if kept:
        print(f"seed {seed}; the home is kept in {kept}, the history in {storm.history}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
