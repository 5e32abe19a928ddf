"""One rank reads from a server that never answers; a watchdog of the script ends each other rank that made no progress.

class: host_stuck, collective_timeout
culprit: 1
ranks: 3
collection: seventh, kept back
logs: exit_code 0 | exit_code 2 | exit_code 0,2 | crashed 0 | crashed 2 | crashed 0,2 | unknown
"""

import os
import socket
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

last = time.monotonic()
is_reading = False


def watch():
    while True:
        time.sleep(0.5)
        if time.monotonic() - last > 5 and not is_reading:
            print(f"watchdog: no step for {time.monotonic() - last:.0f} s, giving up", flush=True)
            os._exit(42)


def read(server):
    global is_reading
    is_reading = True
    with socket.create_connection(server.getsockname()) as connection:
        connection.recv(1024)  # <- culprit
    is_reading = False


def main():
    global last
    threading.Thread(target=watch, daemon=True).start()
    server = socket.create_server(("127.0.0.1", 0))
    for step in range(8):
        if dist.get_rank() == 1 and step == 4:
            read(server)
        dist.all_reduce(torch.ones(4))
        last = time.monotonic()
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=30))
recorders.start(os.environ["OUTPUTS"], timeout_s=30)  # recorders
main()
dist.destroy_process_group()
