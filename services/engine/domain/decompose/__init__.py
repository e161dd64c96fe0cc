"""Takes ONNX operators apart into atomic operators and rasters: one file for each family."""
