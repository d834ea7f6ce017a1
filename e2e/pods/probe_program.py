"""Program in a pod that prints which of its arguments, addresses HOST:PORT, accept a connection.

It needs only Python, so it runs in any of the images.
"""

import concurrent.futures
import socket
import sys

#: A packet that is dropped is not answered; one that is not is answered at once.
TIMEOUT_S = 4


def takes(address: str) -> bool:
    """Whether a connection is taken."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), TIMEOUT_S).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    addresses = sys.argv[1:]
    with concurrent.futures.ThreadPoolExecutor(len(addresses)) as pool:
        for address, taken in zip(addresses, pool.map(takes, addresses), strict=True):
            if taken:
                print(address)
