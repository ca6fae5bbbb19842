"""A Flower app: the clients train as they always did, the server is asynchronous and robust."""
