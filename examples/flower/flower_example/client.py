"""A ClientApp as Flower's own tutorials write it. For SecureAFL nothing in it changes.

If your model has BatchNorm, two lines do: load with `strict=False`, and leave out of the answer
what only counts batches (`num_batches_tracked`).
"""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy

from flower_example.task import make_model, make_samples

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take the model, train it on this node's data, send it back."""
    model = make_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    inputs, labels = make_samples(200, seed=100 + int(context.node_config.get("partition-id", 0)))
    # Training starts from scratch each time; asynchronous learning likes short visits.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows in torch.randperm(len(labels)).split(20):
        optimizer.zero_grad()
        cross_entropy(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(labels)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
