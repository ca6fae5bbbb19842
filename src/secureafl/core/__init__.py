"""What every layer above shares: values, protocols, the pure server step, flat vectors, errors."""
