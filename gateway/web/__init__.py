"""HTTP, and nothing else: routes, bodies, problem documents, middleware, the page."""
