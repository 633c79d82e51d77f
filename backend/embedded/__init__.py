"""A real EAGLE-3 engine for any CPU: target, draft head, draft-and-verify loop, HTTP server, training."""
