"""In place of `strategy = FedAvg(...)` and `strategy.start(...)`: these few lines."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from secureafl.deployment.server_app import run

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve experiment.toml, which lies beside this file."""
    out = Path(str(context.run_config["out"]))
    run(grid, Path(__file__).parent / "experiment.toml", out)
