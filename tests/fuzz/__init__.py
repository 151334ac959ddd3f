"""Fuzzers: everything that reads what somebody else wrote is fed damaged and made-up bytes.

    fuzz/targets/NAME.py   one target each: `target()` gives a Target
    fuzz/corpus/NAME/      inputs that once found a fault, fed again in every run
    fuzz/driver.py         makes inputs from a seed, feeds them, keeps those that find a fault

`PYTHONPATH=tests python -m fuzz NAME SECONDS [SEED]` runs one target, `make fuzz` all of them.
`fuzz/test_fuzz.py` runs each for a moment, with the same inputs every time.
"""
