import keras

model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(lr=0.1), loss="mse")
print(model.optimizer)
