"""Extensions are built against one NumPy."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="numpy-too-new",
    severity="error",
    sentence="A package was built for NumPy 1 and cannot be used with the NumPy 2 "
    "that is installed.",
    fix="pip install 'numpy<2', or a newer version of that package.",
    log=(
        r"A module that was compiled using NumPy 1\.x cannot be run in",
        r"numpy\.dtype size changed, may indicate binary incompatibility",
    ),
)
