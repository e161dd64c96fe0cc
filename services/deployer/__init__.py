"""The deployer: tasks and versions, blobs, devices, staged releases, and the pull half of push-then-pull."""
