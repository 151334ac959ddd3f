"""oneDNN rounds in another order."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="onednn-on",
    severity="note",
    sentence="oneDNN's operations are on: results may differ in their last digits "
    "from those without.",
    fix="Set TF_ENABLE_ONEDNN_OPTS=0 if you compare results bit by bit.",
    log=(r"oneDNN custom operations are on",),
)
