"""How training samples are dealt out to clients; the name in a TOML file is the key here."""

from secureafl.partitions.label_groups import LabelGroups

PARTITIONS = {
    "label_groups": LabelGroups,
}
