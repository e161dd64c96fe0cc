"""What the device agent decides, without IO."""
