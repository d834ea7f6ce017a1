"""Limits of memory, connections, requests and fairness.

There are five kinds of limit:

- A *budget* bounds bytes or slots over all clients (:mod:`.fair_share`, :mod:`.response_memory`).
- A *share* is the part of a budget that one client may use (:mod:`.fair_share`).
- A *quota* bounds the rate of a client, an address or a kind of transfer (:mod:`.rate`,
  :mod:`.client_quotas`).
- A *time slice* bounds how long a request occupies the event loop (:mod:`.time_slice`).
- A *mute* pauses a connection, so that its client observes its quota.

``docs/explanation/limits.md`` lists where each limit applies and what happens when it is reached.
"""
