"""The dashboard: what a daemon's journals are doing, for people with a browser.

Served by the daemon itself on its own loop (`serve --web`); needs the extra `web`.
"""
