"""Operators that ONNX Runtime adds to ONNX's: read by definitions in the latter.

`registry` has them, one file for each family; `operator` says what one is, `definition` what they are
written with, `scope` what is known of values' types, `expansion` puts definitions in place.
"""
