"""Flower's grid without Flower's processes."""

import uuid

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


def as_server():
    """Messages can only be made by somebody Flower knows."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


class Here(Grid):
    """Nodes are functions from message to replies, called when replies are asked for."""

    def __init__(self, nodes):
        as_server()
        self.nodes, self.waiting = nodes, {}

    def leave(self, node):
        """A node goes, with what it was asked."""
        del self.nodes[node]
        gone = [name for name, m in self.waiting.items() if m.metadata.dst_node_id == node]
        for name in gone:
            del self.waiting[name]

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
            self.waiting[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids):
        found = [self.waiting.pop(name) for name in list(message_ids) if name in self.waiting]
        return [r for m in found for r in self.nodes[m.metadata.dst_node_id](m)]

    def set_run(self, run): ...
    def create_message(self, *words): ...
    def send_and_receive(self, *words): ...

    @property
    def run(self): ...


def reply(message, content):
    """A node's reply."""
    made = Message(content, reply_to=message)
    made.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
    return made
