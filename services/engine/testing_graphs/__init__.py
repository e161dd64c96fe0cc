"""For tests: random ONNX graphs over many operators, each evaluated as it is drawn, so that all are valid."""
