"""What the engine decides: no protobuf, no gRPC, no IO."""
