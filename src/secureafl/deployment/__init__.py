"""Deployment on Flower: untrusted clients over a network, the server's round as in the simulator.

Without Flower: `messages` (what a reply may hold), `requests` (open requests), `slots` (client
numbers of nodes), `journal` and `coordinator` (nothing applied is lost). With it: `server_app`,
`client_app`, `inbox`, `guard`, and the processes that `serve` and `join` start.
"""
