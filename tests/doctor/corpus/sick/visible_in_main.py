import os

import tensorflow as tf


class Trainer:
    def __init__(self):
        self.weights = tf.Variable(tf.zeros([8, 8]))

    def choose(self, card):
        os.environ["CUDA_VISIBLE_DEVICES"] = card


def main():
    trainer = Trainer()
    trainer.choose("")
    seen = tf.config.list_logical_devices("GPU")
    assert not seen, f"hidden, and still there: {seen}"


main()
