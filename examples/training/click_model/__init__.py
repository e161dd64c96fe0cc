"""A click model for films and the baseline it has to beat: `python -m click_model ratings.csv items.csv`.

A film is shown to a user; the model says how likely the user is to rate it 4 or 5, which is what counts as a
click here. It knows the film, and what the same user rated before: nothing else, so that a device can compute
its input from the user's own events.

In the order of the work: `log` reads the files and makes windows of the past, `ftrl` is the baseline,
`network` the model, `fit` trains it, `export` writes it as ONNX, `metrics` says how good both are.
The folder is self-contained: it is put into a job's folder as it is, and needs numpy, torch and onnx.
"""
