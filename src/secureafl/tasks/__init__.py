"""What is learnt; the name in a TOML file is the key here."""

from secureafl.tasks.fashion_mnist import FashionMnist
from secureafl.tasks.partition import LabelGroups

TASKS = {
    "fashion_mnist": FashionMnist,
}

PARTITIONS = {
    "label_groups": LabelGroups,
}
