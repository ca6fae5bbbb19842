"""A member of a real network without Flower's processes: it answers when and what it likes."""

import threading
import time

from cryptography.hazmat.primitives import serialization
from deployment.grids import as_server
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_connection import http_request_response


class DirectMember(threading.Thread):
    """Answers every request by a function from the request and the answers so far to records."""

    def __init__(self, net, name, answer):
        super().__init__(daemon=True)
        as_server()
        self._answer, self.uploads, self.failed = answer, 0, None
        key = serialization.load_ssh_private_key((net.folder / name).read_bytes(), None)
        self._connection = http_request_response(
            f"127.0.0.1:{net.port}",
            insecure=False,
            root_certificates=(net.folder / "certs" / "ca.crt").read_bytes(),
            authentication_keys=(key, key.public_key()),
            max_wait_time=60.0,
        )

    def run(self):
        try:
            with self._connection as (_, receive, send, _, _, pull, push, confirm):
                while True:
                    found = receive()
                    if found is None:
                        time.sleep(0.1)  # each question costs the server milliseconds
                    else:
                        self._reply(_whole(*found, pull, confirm), send, push)
        except RunNotRunningException:  # it has ended
            return
        except (Exception, SystemExit) as error:  # for the test to see
            self.failed = error

    def _reply(self, request, send, push):
        content = self._answer(request, self.uploads)
        if content is None:  # it says nothing
            return
        reply = Message(content, reply_to=request)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        run, pieces = reply.metadata.run_id, get_all_nested_objects(reply)
        wanted, session = send(reply, get_object_tree(reply), 0.0)
        for name, piece in pieces.items():
            if name in wanted:
                push(run, session, name, piece.deflate())
        self.uploads += 1


def _whole(message, tree, pull, confirm):
    """A request with its content."""
    run, names = message.metadata.run_id, [part.object_id for part in iterate_object_tree(tree)]
    contents = pull_objects(names, pull_object_fn=lambda name: pull(run, name))
    confirm(run, tree.object_id)
    request = inflate_object_from_contents(tree.object_id, contents)
    request.metadata.__dict__["_message_id"] = tree.object_id
    return request
