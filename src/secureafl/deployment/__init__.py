"""For real, on Flower: untrusted clients over a network, the server step of the simulator.

Without Flower: `messages` (what may come in), `tracker` (who was asked what), `members` (who sits
where), `journal` and `coordinator` (nothing applied is lost). With it: `server_app`, `client_app`,
`guard`, and the processes that `serve` and `join` start.
"""
