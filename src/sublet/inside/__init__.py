"""What runs inside a leased program: the only code that imports TensorFlow.

    hook ──▶ patches ──▶ environment   the variables TensorFlow reads when it starts
                     ──▶ config        the ConfigProto it starts with
                     ──▶ pool          one region for the CPU allocator
                     ──▶ measure       the board: what the program uses, once a second
                     ──▶ oom           what is written down when an allocation fails
                     ──▶ probe         a short run, where one was asked for
                     ──▶ trim          a ceiling that is made smaller on the way
    program ──▶ preloaded ──▶ settings  becoming a program in a warm process (`reads`, `variables`)
            ──▶ trampoline ──▶ ending  running it with none of our frames; its end
    isolated                           the same for `python -E`, `-I` and `-S`
    lodging                            a process that takes a lease itself, on the way
    calls ──▶ parcels                  a pool's worker: calls, and what travels with them
    crew ──▶ sharing ──▶ building      whose turn it is to build (`turn`)
                     ──▶ chance        random numbers for each call
                     ──▶ carried       Keras settings for each call
                     ──▶ sessions      a graph and a session for each call of TensorFlow 1
         ──▶ watch                     calls that do not move
    errand                             which call a thread works for
    evidence                           reads what `measure` and `oom` left, from outside

It needs the standard library and TensorFlow, nothing else of Sublet, and Python 3.9: it is also
loaded by file location into interpreters where Sublet is not installed.
"""
