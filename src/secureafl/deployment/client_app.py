"""The ClientApp: takes the model out of a message, has it trained, puts the update into the answer.

It imports no torch, because Flower starts it anew for every message: the node's worker trains
(`deployment.worker`). Where there is none, as in Flower's simulation engine, whose processes stay,
it trains itself.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from secureafl.core.errors import ConfigError
from secureafl.deployment.messages import ABOUT, ATTACK, PROTOCOL, SPEAKS, TRAINED, UPDATE
from secureafl.deployment.worker import Job, TrainerCache, options_from, request_update

if TYPE_CHECKING:
    from jaxtyping import Float

REQUEST = "request"  # the record beside the model's arrays: the fields of `worker.Job`
WORKER = "worker"  # in a node's settings: the socket of its worker
TASK = "SECUREAFL_TASK"  # variable of a node without one: as `join --task`

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer one request."""
    arrays, request = message.content[TRAINED], message.content[REQUEST]
    assert isinstance(arrays, ArrayRecord)
    assert isinstance(request, ConfigRecord)
    shapes = {name: array.shape for name, array in arrays.items()}
    weights = np.concatenate([array.numpy().reshape(-1) for array in arrays.values()])
    given = {name: request[name] for name in Job._fields if name in request}
    job, place = Job(**given), context.node_config.get(WORKER)  # pyrefly: ignore
    train_on = functools.partial(request_update, str(place)) if place else _own_trainers().train
    try:
        update, attack = train_on(job, weights)
    except (RuntimeError, ConfigError):
        if job.protocol == PROTOCOL:
            raise
        told = RecordDict({ABOUT: ConfigRecord({SPEAKS: PROTOCOL})})
        return Message(told, reply_to=message)
    content = RecordDict({UPDATE: named_arrays(update, shapes)})
    if attack:
        content[ABOUT] = ConfigRecord({ATTACK: attack})
    return Message(content, reply_to=message)


@functools.cache
def _own_trainers() -> TrainerCache:
    return TrainerCache(options_from({"task": os.environ.get(TASK, "")}))


def named_arrays(
    vector: Float[np.ndarray, " d"], shapes: Mapping[str, tuple[int, ...]]
) -> ArrayRecord:
    """A flat vector as the arrays of a message."""
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    pieces = np.split(np.ascontiguousarray(vector, np.float32), ends[:-1])
    parts = zip(shapes.items(), pieces, strict=True)
    return ArrayRecord({name: Array(piece.reshape(shape)) for (name, shape), piece in parts})
