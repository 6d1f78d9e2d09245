"""Every HTTP endpoint of the client apps: bearer auth, limits, errors, the OpenAPI document. `mount` joins them."""
