"""What a run folder tells, followed while it grows and kept small however long it gets."""
