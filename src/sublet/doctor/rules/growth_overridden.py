"""TF_FORCE_GPU_ALLOW_GROWTH counts more than what a program sets."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="growth-overridden",
    severity="note",
    sentence="TF_FORCE_GPU_ALLOW_GROWTH has overridden the program's own memory "
    "growth, as it does under `sublet run`.",
    fix="Nothing has to be done.",
    log=(r"Overriding orig_value setting because the TF_FORCE_GPU_ALLOW_GROWTH",),
)
