"""The kernel's part of the driver and its libraries have to be of one version."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="driver-mismatch",
    severity="error",
    sentence="NVIDIA's driver was updated while it was loaded: its libraries and "
    "the kernel module differ.",
    fix="Restart the machine, or unload and load the nvidia kernel modules.",
    log=(
        r"Driver/library version mismatch",
        r"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        r"kernel version [\d.]+ does not match DSO version",
    ),
)
