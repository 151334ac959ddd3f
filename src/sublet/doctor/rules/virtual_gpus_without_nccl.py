"""NCCL works with whole cards."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="virtual-gpus-without-nccl",
    severity="note",
    sentence="Several logical GPUs share a card, so gradients are added up without NCCL.",
    fix="Use one logical device per card if that is too slow.",
    log=(r"NCCL is not supported when using virtual GPUs",),
)
