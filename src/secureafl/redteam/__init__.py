"""The search for the attack that harms a defence most."""
