"""`fit` with steps needs a dataset that does not end."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="out-of-data",
    severity="warning",
    sentence="The dataset ended before steps_per_epoch times epochs batches were "
    "read, and training stopped early.",
    fix="Add .repeat() to the dataset, or leave steps_per_epoch out.",
    log=(r"Your input ran out of data; interrupting training",),
)
