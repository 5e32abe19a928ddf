"""The main process uploads its model after some steps and is rejected, as its token has expired.

class: crashed
culprit: 0
ranks: 3
collection: eighth
"""

import os
import threading
import urllib.request
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


class Hub(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_error(401)

    def log_message(self, *_):
        pass


def push():
    hub = HTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    urllib.request.urlopen(f"http://127.0.0.1:{hub.server_port}/api/whoami")  # <- culprit


def main():
    for step in range(8):
        gradient = torch.randn(16)
        dist.all_reduce(gradient)
        print(f"step {step}", flush=True)
        if dist.get_rank() == 0 and step == 4:
            push()


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
