"""Seconds of an evaluation on 10,000 images, alone on a GPU: python evaluation.py TASK DATA_DIR."""
import sys, time
import torch
from secureafl import from_mapping
from secureafl.simulation.simulator import Simulation

run = Simulation(from_mapping({"task": {"kind": sys.argv[1], "data_dir": sys.argv[2]}, "defense": "async_sgd", "device": "cuda"}))
with run.compute:
    for _ in range(3):
        run.clients.test_outputs(run.weights)
    torch.cuda.synchronize(); start = time.perf_counter()
    for _ in range(20):
        run.clients.test_outputs(run.weights)
    torch.cuda.synchronize()
print(sys.argv[1], f"{(time.perf_counter() - start) / 20 * 1e3:.2f} ms an evaluation")
