"""`pool.py NAME CALLS`: a program with a pool; writes down what came of each call."""

import sys
import time

import note

import sublet


def double(call: str, number: int) -> int:
    note.begin(call)
    time.sleep(0.1)
    note.end(call)
    return 2 * number


def main() -> None:
    name, calls = sys.argv[1], int(sys.argv[2])
    with sublet.Pool(2, memory="64MiB") as pool:
        asked = [(f"{name}.{n}", n, pool.submit(double, f"{name}.{n}", n)) for n in range(calls)]
        for call, number, future in asked:
            try:
                right = future.result() == 2 * number
                note.write("answer", call, how="right" if right else "wrong")
            except sublet.WorkerDied as error:
                note.write("answer", call, how="died", said=str(error))
            except sublet.SubletError as error:
                note.write("answer", call, how="refused", said=f"{type(error).__name__}: {error}")
            except Exception as error:
                note.write("answer", call, how="odd", said=repr(error))
    note.write("pool", name, calls=calls)


if __name__ == "__main__":
    main()
