"""Generated code and protobuf have to fit."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="protobuf-mismatch",
    severity="error",
    sentence="The installed protobuf does not fit to code that was generated for another version.",
    fix="Reinstall TensorFlow with its dependencies: pip install --upgrade "
    "--force-reinstall tensorflow.",
    log=(
        r"Descriptors cannot(?: not)? be created directly",
        r"google\.protobuf\.runtime_version\.VersionError",
    ),
)
