"""What the scheduler decides: no protobuf, no gRPC, no etcd."""
