"""A trace that is changed while one looks at it: the session (session.py) and its server (server.py)."""
