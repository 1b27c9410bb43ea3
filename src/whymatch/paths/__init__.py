"""The exact linear maps from x − r to e(x) − e(r): integrated Jacobians, relays of them, and secants."""
