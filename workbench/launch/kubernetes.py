"""Print a job for Kubernetes: an Indexed Job with a launcher in each pod.

The disk of a pod is deleted with the pod. So each launcher writes its files to a URL that remains:

    workbench launch --scheduler kubernetes --image IMAGE --nnodes 4 --collect s3://BUCKET/RUN -- python train.py
    workbench inspect s3://BUCKET/RUN
"""

import json
import secrets
from collections.abc import Sequence

from workbench.errors import UsageProblem
from workbench.launch.plan import Plan, Request

_RENDEZVOUS_PORT = 29500
_LAST_FILES_S = 120
"""The seconds that a pod has from SIGTERM to its end, in which its last files are sent."""


def manifest(job: Plan, arguments: Sequence[str]) -> str:
    """Return the Kubernetes manifest (YAML) of a job; `arguments` go to `workbench launch` on each node.

    Raises:
        UsageProblem: There is no image, or nowhere to write the files of the pods.
    """
    request = job.request
    if not request.image:
        raise UsageProblem(
            "--scheduler kubernetes: no image", "give --image with an image that has workbench and torch"
        )
    if not request.collect:
        raise UsageProblem(
            "--scheduler kubernetes: the disk of a pod is gone with the pod, and all files with it",
            "give --collect with a URL that the pods can write to, such as s3://BUCKET/RUN",
        )
    name = f"workbench-{secrets.token_hex(3)}"
    return "---\n".join((network(name), workers(name, request, arguments)))


def command(words: Sequence[str]) -> str:
    """Return a command as a YAML list; each word is quoted as in JSON."""
    # Kubernetes would replace $(NAME) by the value of a variable.
    return json.dumps([word.replace("$(", "$$(") for word in words])


def network(name: str) -> str:
    """Return the YAML of the headless Service that gives each pod of the job `name` a host name.

    The launchers find the first pod, which hosts the rendezvous, by its host name.
    """
    # Pods that are not ready need names too: launchers look for the first pod before it is ready.
    return f"""\
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{job-name: {name}}}
"""


def workers(name: str, request: Request, arguments: Sequence[str]) -> str:
    """Return the YAML of the Job `name` with a launcher on each node; its first pod hosts the rendezvous.

    `arguments` go to each launcher. This function adds the address of the rendezvous.
    """
    options = ["--rdzv-endpoint", f"{name}-0.{name}:{_RENDEZVOUS_PORT}"]
    # /dev/shm of a container has 64 MiB by default, too little for the workers of a data loader.
    return f"""\
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
  completionMode: Indexed
  completions: {request.nnodes}
  parallelism: {request.nnodes}
  backoffLimit: 0
  template:
    spec:
      subdomain: {name}
      restartPolicy: Never
      terminationGracePeriodSeconds: {_LAST_FILES_S}
      containers:
      - name: node
        image: {json.dumps(request.image)}
        command: {command(["workbench", "launch", *options, *arguments])}
        # resources: {{limits: {{nvidia.com/gpu: {request.nproc or 8}}}}}
        volumeMounts:
        - {{name: shared-memory, mountPath: /dev/shm}}
      volumes:
      - name: shared-memory
        emptyDir: {{medium: Memory}}
"""
