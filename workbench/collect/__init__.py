"""Bring the files of nodes without a shared disk together: each node writes its own to one URL while the job runs.

The URL is anything that fsspec can write to: `s3://`, `gs://`, `abfs://`, `sftp://`, `file://` on a shared disk. The
files of a node are at `URL/nodes/NODE/`, laid out as in its run folder, beside `node.json`, which says when the node
was last there. `workbench inspect URL` answers as if all had been on one disk.
"""
