"""Your own module and NumPy arrays, trained while two of ten clients upload noise.

scikit-learn is here for its pictures of digits: pip install scikit-learn.
"""

import torch
from sklearn.datasets import load_digits

import secureafl

images, digits = load_digits(return_X_y=True)
network = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
train, test = (images[:1400], digits[:1400]), (images[1400:], digits[1400:])
result = secureafl.fit(network, train, test, clients=10, attack="gaussian", rounds=400)
model = secureafl.load_model(result.path, network)
right = model(test[0]).argmax(dim=1).numpy() == test[1]
print(f"of {len(right)} test images {right.mean():.1%} are recognised: {result}")
