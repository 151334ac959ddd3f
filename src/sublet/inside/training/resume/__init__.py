"""Trainings that are saved and resumed: `sublet.fit(…, checkpoint="run1/")`.

    run ──▶ directory   the checkpoints, each one file, there whole or not at all
        ──▶ variables   weights, the optimizer, random numbers of layers, metrics
        ──▶ position    where in the data the next step begins
        ──▶ generators  the random numbers of Python, NumPy and TensorFlow
        ──▶ observed    what callbacks remember
        ──▶ termination SIGTERM, which waits for the end of a step

Keras' own `fit` stays around all of it.
"""
