"""What is learnt; the name in a TOML file is the key here."""

from secureafl.tasks.fashion_mnist import FashionMnist

TASKS = {
    "fashion_mnist": FashionMnist,
}
