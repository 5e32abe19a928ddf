"""Print a job for Kubernetes: an Indexed Job with a launcher in each pod, and a pod that receives the files of all.

The disk of a pod is deleted with the pod. So the receiver runs in a separate pod, with a volume that remains:

    kubectl create secret generic workbench-token --from-file=token
    workbench launch --scheduler kubernetes --image IMAGE --nnodes 4 --nproc 8 -- python train.py
    kubectl exec NAME-home -- workbench inspect /home
"""

import json
import secrets
from collections.abc import Sequence

from workbench.collect.token import VARIABLE
from workbench.errors import UsageProblem
from workbench.launch.plan import Plan, Request

SECRET = "workbench-token"  # noqa: S105  # the name of the Secret
RENDEZVOUS_PORT, RECEIVER_PORT = 29500, 29501
VOLUME = "10Gi"
LAST_FILES_S = 120
"""The seconds that a pod has from SIGTERM to its end, in which its last files are sent."""


def manifest(job: Plan, arguments: Sequence[str]) -> str:
    """Return the Kubernetes manifest (YAML) of a job; `arguments` go to `workbench launch` on each node.

    Raises:
        UsageProblem: There is no image, or the job would send its files to another receiver.
    """
    request = job.request
    if not request.image:
        raise UsageProblem(
            "--scheduler kubernetes: no image", "give --image with an image that has workbench and torch"
        )
    if request.collect or request.token_file:
        raise UsageProblem(
            "--scheduler kubernetes has a receiver of its own",
            f"leave out --collect; the Secret {SECRET} has the token",
        )
    name = f"workbench-{secrets.token_hex(3)}"
    return "---\n".join((receiver(name, request), network(name), workers(name, request, arguments)))


def command(words: Sequence[str]) -> str:
    """Return a command as a YAML list; each word is quoted as in JSON."""
    # Kubernetes would replace $(NAME) by the value of a variable.
    return json.dumps([word.replace("$(", "$$(") for word in words])


def token_variable(indent: int) -> str:
    """Return the YAML field `env` of a container; it takes the collection token from the Secret.

    `indent` is the number of spaces before the second and later lines.
    """
    lines = (
        "env:",
        f"- name: {VARIABLE}",
        f"  valueFrom: {{secretKeyRef: {{name: {SECRET}, key: token}}}}",
    )
    return ("\n" + " " * indent).join(lines)


def receiver(name: str, request: Request) -> str:
    """Return the YAML of the pod that receives the files of all nodes, with its volume and its Service.

    The names of all objects begin with `name`, the name of the job. `request` has the image and the number of nodes.
    """
    listen = ["workbench", "collect", "/home", "--listen", f"0.0.0.0:{RECEIVER_PORT}", "--nodes", str(request.nnodes)]
    return f"""\
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {name}-home
spec:
  accessModes: [ReadWriteOnce]
  resources: {{requests: {{storage: {VOLUME}}}}}
---
apiVersion: v1
kind: Pod
metadata:
  name: {name}-home
  labels: {{app: {name}-home}}
spec:
  restartPolicy: Always
  containers:
  - name: receiver
    image: {json.dumps(request.image)}
    command: {command(listen)}
    {token_variable(4)}
    ports:
    - containerPort: {RECEIVER_PORT}
    volumeMounts:
    - {{name: home, mountPath: /home}}
  volumes:
  - name: home
    persistentVolumeClaim: {{claimName: {name}-home}}
---
apiVersion: v1
kind: Service
metadata:
  name: {name}-home
spec:
  selector: {{app: {name}-home}}
  ports:
  - port: {RECEIVER_PORT}
"""


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

    `arguments` go to each launcher. This function adds the addresses of the rendezvous and the receiver.
    """
    options = ["--rdzv-endpoint", f"{name}-0.{name}:{RENDEZVOUS_PORT}", "--collect", f"{name}-home:{RECEIVER_PORT}"]
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
      terminationGracePeriodSeconds: {LAST_FILES_S}
      containers:
      - name: node
        image: {json.dumps(request.image)}
        command: {command(["workbench", "launch", *options, *arguments])}
        {token_variable(8)}
        # resources: {{limits: {{nvidia.com/gpu: {request.nproc or 8}}}}}
        volumeMounts:
        - {{name: shared-memory, mountPath: /dev/shm}}
      volumes:
      - name: shared-memory
        emptyDir: {{medium: Memory}}
"""
