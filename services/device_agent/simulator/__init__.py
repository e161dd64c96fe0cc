"""The agent in the cloud: tries a version over recorded events before a device sees it.

    Simulate ─► service ─► simulations: room? ─► files of the version and events, from the deployer
                                │
                                └─► a process of its own (child) ─► an agent without a gateway ─► its task VM
                                                                                  │
               Preflight ◄─ convert ◄─ verdict ◄──────────────────────────────────┘

What a script does happens in the task VM, confined as on a device. The process around it is killed when its
time is over, when it writes too much, and when whoever asked has given up; its folder goes with it. What a
killed simulator left behind is removed when it starts again.
"""
