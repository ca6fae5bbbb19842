"""Several experiments at once, in processes of their own."""
