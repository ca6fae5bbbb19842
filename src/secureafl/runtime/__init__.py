"""What simulation and deployment both stand on: clients, attackers, root data and batches."""
