"""Partitions of the training samples among clients; the name in a TOML file is the key here."""

from secureafl.partitions.by_recording import ByRecording
from secureafl.partitions.dirichlet import Dirichlet
from secureafl.partitions.iid import Iid
from secureafl.partitions.label_groups import LabelGroups

PARTITIONS = {
    "label_groups": LabelGroups,
    "dirichlet": Dirichlet,
    "iid": Iid,
    "by_recording": ByRecording,
}
