"""Speed and memory of the server step, beside the least it must read and beside its peers."""
