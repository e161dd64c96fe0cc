"""Arrays and images in tasks, on the operators that plans are made of.

    backend     what library code may do with values: atomic operators, rasters, sizes
    eager       does it at once, on numpy arrays, by the kernels of plans
    arithmetic  operators that a few atomic ones make up, on values of one type
    promotion   which type comes of several, as numpy has it
    indexing    reading by slices, integers and masks
    tensor      `Tensor`: a value with operators
    matrix      functions with numpy's names
    image       functions with OpenCV's names

The same code runs at once in a task, or is traced into a plan by the engine.
"""
