"""The tunnel's rules, free of gRPC, protobuf and IO: frames, marks, connections, exports."""
