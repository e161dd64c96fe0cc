"""The calls themselves, by kind; see `libs.compute.testing`."""

from __future__ import annotations

from typing import Any

import numpy as np

from libs.compute.testing import Array, Sample

_RANDOM = np.random.default_rng(7)
NUMBERS: Array = _RANDOM.normal(size=(3, 4)) * 3
CUBE: Array = _RANDOM.normal(size=(2, 3, 4)).astype(np.float32)
WHOLE: Array = _RANDOM.integers(-9, 10, (3, 4)).astype(np.int32)
COUNTS: Array = _RANDOM.integers(0, 9, 7)
BYTES: Array = _RANDOM.integers(0, 256, (2, 5)).astype(np.uint8)
FLAGS: Array = _RANDOM.random((3, 4)) < 0.5
VECTOR: Array = _RANDOM.normal(size=6)
LESS: Array = np.clip(NUMBERS / 8, -0.9, 0.9)
MORE: Array = np.abs(NUMBERS) + 1.25
GAPS: Array = np.where(FLAGS, np.nan, NUMBERS)
GAPS[0, 0] = 1.5
EVEN: Array = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.25], [0.5, 0.25, 2.0]])


def _each(names: str, *args: Any, **options: Any) -> list[Sample]:
    return [Sample(name, args, options) for name in names.split()]


CREATION = [
    *_each("array asarray asanyarray ascontiguousarray copy", WHOLE),
    *_each("zeros_like ones_like", CUBE),
    Sample("empty_like", (CUBE[:0],)),
    *_each("zeros ones", (2, 3), dtype="int16"),
    *_each("zeros ones", 4),
    Sample("empty", (0,)),
    Sample("full", ((2, 3), 7)),
    Sample("full", (3, VECTOR[:3])),
    Sample("full_like", (WHOLE, 5.5)),
    Sample("arange", (7,)),
    Sample("arange", (2, 11, 3), {"dtype": "float32"}),
    Sample("arange", (1.5, -2.0, -0.7)),
    Sample("linspace", (0, 1, 5)),
    Sample("linspace", (2.0, 3.0, 4), {"endpoint": False, "retstep": True}),
    Sample("linspace", (VECTOR[:2], 4.0, 3), {"axis": 1}),
    Sample("linspace", (0, 9, 4), {"dtype": "int32"}),
    Sample("logspace", (0.0, 2.0, 4)),
    Sample("geomspace", (1, 256, 5)),
    Sample("geomspace", (-2.0, -32.0, 5)),
    Sample("eye", (3, 4, 1)),
    Sample("identity", (3,), {"dtype": "int8"}),
    Sample("tri", (3, 5, -1)),
    *_each("tril triu", CUBE, -1),
    *_each("tril triu", VECTOR, 1),
    Sample("diag", (VECTOR, -2)),
    Sample("diag", (NUMBERS, 1)),
    Sample("diagflat", (WHOLE[:2, :2], 1)),
    Sample("vander", (VECTOR, 4)),
    Sample("vander", (COUNTS,), {"increasing": True}),
    Sample("meshgrid", (VECTOR, COUNTS)),
    Sample("meshgrid", (VECTOR, COUNTS, VECTOR[:2]), {"indexing": "ij", "sparse": True}),
    Sample("indices", ((2, 3),)),
    Sample("diag_indices", (4,)),
    *_each("tril_indices triu_indices", 4, 1, 5),
    *_each("hanning hamming blackman bartlett", 7),
]
SHAPING = [
    Sample("astype", (NUMBERS, "int32")),
    *_each("shape ndim size ravel transpose permute_dims squeeze flip flipud fliplr atleast_3d", CUBE),
    Sample("size", (CUBE, 1)),
    *_each("atleast_1d atleast_2d atleast_3d", VECTOR),
    *_each("atleast_1d atleast_2d", np.array(5.0)),
    *_each("matrix_transpose linalg.matrix_transpose", CUBE),
    Sample("reshape", (CUBE, (4, -1))),
    Sample("transpose", (CUBE, (1, 2, 0))),
    Sample("moveaxis", (CUBE, [0, 2], [-1, 0])),
    Sample("rollaxis", (CUBE, 2, 1)),
    Sample("swapaxes", (CUBE, 0, -1)),
    Sample("squeeze", (CUBE[:1], 0)),
    Sample("expand_dims", (CUBE, (0, 3))),
    Sample("broadcast_to", (VECTOR, (2, 6))),
    Sample("broadcast_arrays", (VECTOR, COUNTS[:1])),
    Sample("broadcast_shapes", ((3, 1), (1, 4))),
    Sample("flip", (CUBE, (0, 2))),
    *(Sample("rot90", (CUBE, turns, (1, 2))) for turns in (1, 2, 3, -1, 4)),
    Sample("roll", (NUMBERS, 5)),
    Sample("roll", (NUMBERS, (1, -2), (0, 1))),
    Sample("diagonal", (CUBE, 1, 2, 1)),
    Sample("linalg.diagonal", (CUBE,)),
]
JOINING = [
    *_each("concatenate concat", [NUMBERS, WHOLE], 1),
    Sample("concatenate", ([NUMBERS, VECTOR], None)),
    Sample("stack", ([NUMBERS, WHOLE],), {"axis": 1}),
    Sample("unstack", (CUBE,), {"axis": 1}),
    *_each("vstack hstack dstack column_stack", [VECTOR, VECTOR + 1]),
    *_each("vstack hstack dstack", [NUMBERS, NUMBERS]),
    Sample("block", ([[NUMBERS, WHOLE], [WHOLE, NUMBERS]],)),
    Sample("append", (VECTOR, COUNTS)),
    *_each("split array_split dsplit", CUBE, 2),
    Sample("hsplit", (NUMBERS, 2)),
    *_each("array_split", VECTOR, 4),
    Sample("split", (VECTOR, [1, 4])),
    Sample("vsplit", (NUMBERS, 3)),
    Sample("dsplit", (CUBE, 2)),
    Sample("tile", (NUMBERS, (2, 1, 3))),
    Sample("repeat", (NUMBERS, 2)),
    Sample("repeat", (NUMBERS, [1, 0, 3], 0)),
    Sample("repeat", (VECTOR, COUNTS[:6])),
    Sample("resize", (WHOLE, (2, 11))),
    Sample("insert", (NUMBERS, 1, VECTOR[:4]), {"axis": 0}),
    Sample("insert", (NUMBERS, [1, 3], NUMBERS[:, :2]), {"axis": 1}),
    Sample("insert", (VECTOR, -1, 5.0)),
    Sample("delete", (NUMBERS, [0, -1]), {"axis": 1}),
    Sample("delete", (VECTOR, slice(0, 4, 2))),
]
PADDING = [
    Sample("pad", (NUMBERS, 1)),
    Sample("pad", (NUMBERS, ((1, 2), (0, 3))), {"constant_values": (3, 4)}),
    *(
        Sample("pad", (NUMBERS, (2, 5), mode))
        for mode in ("edge", "linear_ramp", "maximum", "mean", "median")
    ),
    *(Sample("pad", (NUMBERS, (2, 5), mode)) for mode in ("minimum", "reflect", "symmetric", "wrap")),
    *(Sample("pad", (WHOLE, (3, 7), mode), {"reflect_type": "odd"}) for mode in ("reflect", "symmetric")),
    Sample("pad", (BYTES, 2, "mean"), {"stat_length": 2}),
    Sample("trim_zeros", (np.array([0, 0, 3, 0, 1, 0]),)),
    Sample("trim_zeros", (np.array([0, 0, 3, 0, 1, 0]), "f")),
]
_TWO = "add subtract multiply divide true_divide floor_divide remainder mod fmod maximum minimum fmax fmin"
ELEMENTWISE = [
    *_each(_TWO, NUMBERS, NUMBERS[::-1].copy()),
    *_each(_TWO, WHOLE, np.where(WHOLE == 0, 3, WHOLE)[:, ::-1].copy()),
    *_each("divmod copysign heaviside", NUMBERS, NUMBERS[:, ::-1].copy()),
    *_each("power pow", MORE, LESS),
    Sample("power", (WHOLE, 3)),
    Sample("float_power", (COUNTS, 0.5)),
    *_each("negative positive absolute abs fabs sign signbit", NUMBERS),
    *_each("negative positive absolute abs fabs sign", WHOLE),
    Sample("clip", (NUMBERS, -1.0, 2.0)),
    Sample("clip", (WHOLE,), {"max": 3}),
    *_each("gcd lcm", WHOLE, WHOLE[:, ::-1].copy()),
    Sample("ldexp", (NUMBERS, WHOLE)),
    Sample("nan_to_num", (GAPS,)),
    Sample("nan_to_num", (np.array([np.inf, -np.inf, np.nan, 1], np.float32), True, 3.0, 9.0)),
    *_each("floor ceil trunc fix rint modf", NUMBERS),
    *_each("floor ceil trunc rint", WHOLE),
    *_each("round around", NUMBERS, 1),
    Sample("round", (WHOLE * 7, -1)),
]
FUNCTIONS = [
    *_each("exp exp2 expm1 sinc cbrt square sin cos tan tanh sinh cosh arctan atan arcsinh asinh", NUMBERS),
    *_each("exp exp2 expm1 sinc cbrt square sin cos tan tanh sinh cosh arctan", CUBE),
    *_each("log log2 log10 log1p sqrt reciprocal arccosh acosh", MORE),
    *_each("arcsin asin arccos acos arctanh atanh", LESS),
    *_each("logaddexp logaddexp2 arctan2 atan2 hypot", NUMBERS, NUMBERS[::-1].copy()),
    *_each("degrees radians deg2rad rad2deg", NUMBERS),
    Sample("unwrap", (NUMBERS * 3,)),
    Sample("unwrap", (WHOLE * 90,), {"axis": 0, "period": 360}),
]
LOGIC = [
    *_each("equal not_equal less less_equal greater greater_equal", WHOLE, WHOLE[:, ::-1].copy()),
    *_each("logical_and logical_or logical_xor", WHOLE > 0, WHOLE),
    Sample("logical_not", (WHOLE,)),
    *_each("isnan isinf isfinite isposinf isneginf", GAPS),
    *_each("isclose allclose", NUMBERS, NUMBERS + 1e-9),
    *_each("array_equal array_equiv", NUMBERS, NUMBERS),
    *_each("all any", FLAGS, 1, keepdims=True),
    *_each("all any", np.zeros((0, 3))),
    Sample("where", (FLAGS, NUMBERS, 0)),
    Sample("where", (FLAGS,)),
]
BITS = [
    *_each("bitwise_and bitwise_or bitwise_xor", WHOLE, WHOLE[::-1].copy()),
    *_each("bitwise_and bitwise_or bitwise_xor", FLAGS, FLAGS[::-1].copy()),
    *_each("invert bitwise_not bitwise_invert bitwise_count", WHOLE),
    *_each("left_shift bitwise_left_shift right_shift bitwise_right_shift", WHOLE, 3),
    *_each("packbits unpackbits", BYTES, axis=1),
    *_each("packbits unpackbits", BYTES, bitorder="little"),
    Sample("unpackbits", (BYTES,), {"axis": 1, "count": 43}),
]
REDUCTION = [
    *_each("sum prod max min amax amin mean std var ptp count_nonzero median", NUMBERS),
    *_each("sum prod max min mean std var median", CUBE, axis=(0, 2), keepdims=True),
    *_each("sum prod max min mean std var median", WHOLE, axis=-1),
    *_each("sum prod mean var", NUMBERS, axis=0, where=FLAGS[:, :1] | True),
    *_each("max min", NUMBERS, axis=0, where=FLAGS, initial=0.5),
    *_each("var std", NUMBERS, ddof=1),
    Sample("average", (NUMBERS,), {"axis": 1, "weights": MORE[0], "returned": True}),
    *(
        Sample("quantile", (NUMBERS, 0.3), {"method": name, "axis": 1})
        for name in ("linear", "lower", "hazen")
    ),
    Sample("quantile", (CUBE, np.array([0.1, 0.5, 1.0])), {"axis": 2}),
    Sample("percentile", (NUMBERS, [5, 50, 95]), {"axis": 0, "keepdims": True}),
    Sample("cov", (NUMBERS,)),
    Sample("cov", (VECTOR, VECTOR[::-1].copy()), {"ddof": 0}),
    Sample("corrcoef", (NUMBERS,), {"rowvar": False}),
]
MISSING = [
    *_each("nansum nanprod nanmax nanmin nanmean nanstd nanvar nanmedian nanargmax nanargmin", GAPS),
    *_each("nansum nanprod nanmean nanmedian nancumsum nancumprod", GAPS, axis=1),
    *_each("nanmax nanmin", NUMBERS, axis=0),
    Sample("nanquantile", (GAPS, 0.25), {"axis": 0}),
    Sample("nanpercentile", (GAPS, [10, 90])),
]
RUNNING = [
    *_each("cumsum cumprod", WHOLE),
    *_each("cumsum cumprod", NUMBERS, 1),
    *_each("cumulative_sum cumulative_prod", NUMBERS, axis=0, include_initial=True),
    Sample("diff", (NUMBERS, 2)),
    Sample("diff", (FLAGS,), {"axis": 0}),
    Sample("diff", (VECTOR,), {"prepend": 0.0, "append": VECTOR[:2]}),
    Sample("ediff1d", (COUNTS,), {"to_begin": [1, 2], "to_end": 9}),
    Sample("gradient", (NUMBERS, 2.0)),
    Sample("gradient", (VECTOR, np.array([0.0, 1.0, 1.5, 3.0, 3.5, 4.0])), {"edge_order": 2}),
    Sample("trapezoid", (NUMBERS,), {"dx": 0.5}),
    *(Sample("convolve", (VECTOR, COUNTS[:3], mode)) for mode in ("full", "same", "valid")),
    *(Sample("correlate", (COUNTS[:3], COUNTS, mode)) for mode in ("full", "same", "valid")),
    Sample("interp", (NUMBERS, np.array([-2.0, 0.0, 1.0]), np.array([1.0, 3.0, -1.0]))),
    Sample("interp", (NUMBERS, np.array([-2.0, 0.0, 1.0]), np.array([1.0, 3.0, -1.0])), {"period": 4.0}),
    Sample("polyval", (VECTOR, NUMBERS)),
    *_each("polyadd polysub polymul", VECTOR, COUNTS),
    *_each("polyder polyint", VECTOR, 2),
]
SORTING = [
    *_each("sort argsort argmax argmin nonzero flatnonzero argwhere", WHOLE),
    *_each("sort argsort argmax argmin", NUMBERS, axis=0),
    *_each("partition argpartition", np.array([5, 1, 4, 2, 3]), 0),
    Sample("lexsort", ((COUNTS, COUNTS[::-1].copy()),)),
    Sample("searchsorted", (np.array([1, 3, 5]), COUNTS)),
    Sample("digitize", (VECTOR, [-1.0, 0.0, 1.0])),
    Sample("take", (NUMBERS, np.array([2, 0])), {"axis": 1}),
    Sample("take_along_axis", (NUMBERS, np.array([[1], [0], [3]])), {"axis": 1}),
    Sample("choose", (np.array([0, 1, 2, 1]), [VECTOR[:4], VECTOR[1:5], VECTOR[2:6]])),
    Sample("select", ([WHOLE > 3, WHOLE < -3], [WHOLE, -WHOLE])),
    Sample("compress", (np.array([True, False, True]), NUMBERS), {"axis": 0}),
    Sample("extract", (FLAGS, NUMBERS)),
    Sample("unique", (COUNTS,)),
    Sample("unique", (COUNTS,), {"return_inverse": True, "return_counts": True}),
    *_each("unique_values unique_counts unique_inverse unique_all", COUNTS),
    *_each("isin intersect1d union1d setdiff1d setxor1d", COUNTS, np.array([1, 3, 8])),
    Sample("bincount", (COUNTS,)),
    *_each("histogram histogram_bin_edges", VECTOR, 4, (-2.0, 2.0)),
]
PRODUCTS = [
    *_each("dot matmul linalg.matmul", NUMBERS, NUMBERS.T.copy()),
    *_each("inner", NUMBERS, WHOLE),
    *_each("vdot outer linalg.outer", VECTOR, VECTOR),
    Sample("kron", (NUMBERS, WHOLE[:2])),
    *_each("trace linalg.trace", EVEN, offset=1),
    Sample("linalg.trace", (CUBE,)),
    *_each("tensordot linalg.tensordot", CUBE, CUBE, axes=([1, 2], [1, 2])),
    Sample("einsum", ("ij,kj->ik", NUMBERS, WHOLE)),
    Sample("einsum", ("...i,...i", CUBE, CUBE)),
    *_each("cross linalg.cross", EVEN, EVEN[::-1].copy()),
    *_each("vecdot linalg.vecdot", NUMBERS, NUMBERS[0]),
    Sample("matvec", (NUMBERS, NUMBERS[0])),
    Sample("vecmat", (VECTOR[:3], NUMBERS)),
    *_each("linalg.det linalg.inv linalg.slogdet linalg.cholesky linalg.qr linalg.norm", EVEN),
    Sample("linalg.solve", (EVEN, VECTOR[:3])),
    Sample("linalg.matrix_power", (EVEN, 3)),
    Sample("linalg.multi_dot", ([NUMBERS, NUMBERS.T.copy(), NUMBERS],)),
    Sample("linalg.norm", (NUMBERS, 1), {"axis": 1}),
    Sample("linalg.matrix_norm", (CUBE,), {"ord": 1}),
    Sample("linalg.vector_norm", (CUBE,), {"axis": (0, 2), "keepdims": True}),
    Sample("linalg.cond", (EVEN, "fro")),
    *_each("fft.fft fft.ifft fft.rfft", VECTOR),
    *_each("fft.fft2 fft.ifft2", NUMBERS),
    *_each("fft.fftshift fft.ifftshift", NUMBERS),
    Sample("fft.irfft", (VECTOR,), {"n": 10}),
    *_each("fft.fftfreq fft.rfftfreq", 5, 0.5),
]
SAMPLES = [
    *CREATION,
    *SHAPING,
    *JOINING,
    *PADDING,
    *ELEMENTWISE,
    *FUNCTIONS,
    *LOGIC,
    *BITS,
    *REDUCTION,
    *MISSING,
    *RUNNING,
    *SORTING,
    *PRODUCTS,
]
