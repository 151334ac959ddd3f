"""The one process per user and host that decides; never imports TensorFlow or opens a device."""
