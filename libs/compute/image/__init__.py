"""Functions with OpenCV's names, on the operators that plans are made of."""
