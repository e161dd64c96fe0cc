"""The compiler: ONNX in, a plan out."""
