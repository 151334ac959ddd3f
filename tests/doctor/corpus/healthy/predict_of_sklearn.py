import numpy as np


class Model:
    def predict(self, rows):
        return rows.sum(axis=1)


model = Model()
for row in np.random.rand(8, 4):
    print(model.predict(np.expand_dims(row, 0)))
