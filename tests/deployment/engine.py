"""Our apps in Flower's simulation engine: python -m deployment.engine EXPERIMENT.toml OUT NODES."""

import os
import sys
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
os.environ |= {"RAY_DISABLE_DOCKER_CPU_WARNING": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def main(file, out, nodes):
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from secureafl.deployment.client_app import app as clients
    from secureafl.deployment.server_app import run

    server = ServerApp()

    @server.main()
    def serve(grid, context):
        run(grid, Path(file), Path(out))

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, clients, int(nodes), backend_config=resources)


if __name__ == "__main__":
    main(*sys.argv[1:])
