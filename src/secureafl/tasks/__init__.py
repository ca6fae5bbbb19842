"""Tasks: a data set, a model, a loss and metrics; the name in a TOML file is the key here."""

from secureafl.tasks.cifar10 import Cifar10
from secureafl.tasks.cifar100 import Cifar100
from secureafl.tasks.fashion_mnist import FashionMnist
from secureafl.tasks.tiny_imagenet import TinyImagenet
from secureafl.tasks.udacity import Udacity

TASKS = {
    "fashion_mnist": FashionMnist,
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "tiny_imagenet": TinyImagenet,
    "udacity": Udacity,
}
