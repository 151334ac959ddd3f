import tensorflow as tf


def configure():
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)


def main():
    configure()
    print(tf.linalg.trace(tf.eye(3)))


if __name__ == "__main__":
    main()
