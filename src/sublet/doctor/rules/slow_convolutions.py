"""cuDNN falls back to an algorithm that needs less."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="slow-convolutions",
    severity="warning",
    sentence="A faster algorithm did not fit into the memory limit: the program "
    "runs, but slower than it could.",
    fix="Give it a larger lease (`sublet run --memory`), or a smaller batch.",
    log=(r"The caller indicates that this is not a failure",),
)
