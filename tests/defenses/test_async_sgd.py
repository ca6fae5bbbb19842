import torch

from secureafl.core.server import Server, Upload
from secureafl.defenses import AsyncSgd


def test_every_upload_is_applied_as_it_comes():
    server = Server(AsyncSgd(), num_clients=3, learning_rate=0.5)
    state = server.start(torch.zeros(2))
    for client, update in enumerate([[1.0, 2.0], [-4.0, 0.0], [1e6, 1.0]]):
        state.ledger.lend(0, torch.zeros(2))
        before = state.weights
        update = torch.tensor(update)
        decision, state = server.receive(state, Upload(client, 0, update))
        assert decision.accepted
        assert decision.ready
        assert torch.equal(state.weights, before - 0.5 * update)
