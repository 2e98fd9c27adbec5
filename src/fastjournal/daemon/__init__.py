"""The daemon: one asyncio process that serves journals to many hosts.

`server` listens, `connection` moves bytes, `hosting` decides groups of requests on a journal and
holds replies back until they are safe, `fj` and `workq` speak the two protocols, `waiters` keeps
who waits for what.
"""
