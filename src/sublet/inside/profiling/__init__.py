"""Records steps, memory and TensorFlow's own profile when somebody asks for it
(`formats.profile_order`). Until then nothing of TensorFlow or Keras is touched."""
