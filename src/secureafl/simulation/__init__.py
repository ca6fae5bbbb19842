"""The simulator: feeds the server with arrivals drawn beforehand and yields events."""
