"""What runs inside a worker process; imports the standard library and `isthmus.task` only.

`boot` starts it under a private package name (hence the relative imports), `main` answers requests, `runner`
loads scripts and runs them, `values` checks what they return,
`confinement` takes the process's powers away, `framing` is the protocol on the socket to the agent.
"""
