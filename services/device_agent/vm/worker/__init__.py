"""What runs inside a worker: imports the standard library, `isthmus.task`, and `libs.runtime` for models.

`boot` starts it under a private package name (hence the relative imports), `main` answers requests, `runner`
loads scripts and runs them, `model` runs a plan between them, `values` checks what they return, `imports`
keeps the agent's own packages from scripts, `confinement` takes the process's powers away, `framing` is the
protocol on the socket to the agent.
"""
