"""The local stack: every service as its own supervised process on this machine, and Prometheus beside them.

``python -m deploy.local up`` (``make up``) goes through these modules in this order:

``layout``        where things lie under the stack's home (``var/`` of the checkout)
``topology``      the processes: ports, commands, environment, how each tells that it is healthy
``ports``         who holds a port that the stack needs
``certificates``  the development authority and the gateway's certificate
``preparation``   what the processes find at their start: keys, the operator's API key, the command's settings
``fetch``         Prometheus' binary, from PATH or out of Debian's package
``monitoring``    Prometheus' and Grafana's files
``supervision``   supervisord: its configuration, its control socket, what its log says about crashes
``health``        gRPC and HTTP probes
``status``        what is known of each process
``view``          ``StackView``: what can be seen of a stack without changing it
``stack``         ``Stack``: all of it together; tests and the demo use it too

Several stacks run side by side when their homes and port offsets differ; none touches another's processes.
"""
