"""A session runs what a graph holds, and eager operations leave nothing there."""

from sublet.doctor.rule import Rule

RULE = Rule(
    id="session-without-graph",
    severity="error",
    sentence="The session has an empty graph: the operations before it were run eagerly, as "
    "TensorFlow 2 does it.",
    fix="Call tf.compat.v1.disable_eager_execution() right after the import.",
    log=(r"The Session graph is empty\. Add operations to the graph before calling run\(\)",),
)
