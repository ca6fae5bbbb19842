"""Arrival models: which client uploads when, computed on which model version.

The name in a TOML file is the key here.
"""

from secureafl.arrivals.event_driven import EventDriven
from secureafl.arrivals.uniform import Uniform

ARRIVALS = {
    "uniform": Uniform,
    "event_driven": EventDriven,
}
