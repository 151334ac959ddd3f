"""Not a number spreads through all weights."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="nan-loss",
    severity="warning",
    sentence="The loss became NaN.",
    fix="Lower the learning rate, clip gradients (clipnorm=1.0), and look for zeros "
    "in logarithms and divisions.",
    log=(r"loss: nan\b",),
)
