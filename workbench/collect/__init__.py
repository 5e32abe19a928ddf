"""Collect the files of a run from nodes without a shared disk in one folder, over HTTP with a token.

A sender on each node reads the node's run folder. A receiver writes what it gets to `nodes/NODE/` below the home
folder, where the analyzers find the files:

    token, parcel      the secret, and the messages that are signed with it
    artefact_names     which files are sent and accepted
    outgoing, sender   read what is new on a node, and send it
    node_folder, receiver, service    write what comes, answer requests, listen
"""
