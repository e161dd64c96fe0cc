"""A click model for films, a larger one to ask, and the baseline that both have to beat.

A film is shown to a user; a model says how likely the user is to rate it 4 or 5, which is what counts as a
click here. It knows the film, and what the same user rated before: nothing else, so that a device can compute
its input from the user's own events, and can ask the larger model in the cloud without saying whose it is.

In the order of the work: `log` reads the files and gives windows of the past, `ftrl` is the baseline,
`network` the device's model, `fit` trains it, `ranker` is the cloud's, `fit_ranker` trains it, `cascade` says
when a device asks, `export` writes both as ONNX, `metrics` says how good all are.
The folder is self-contained: it is put into a job's folder as it is, and needs numpy, torch and onnx.
`python -m click_model ratings.csv items.csv` runs it.
"""
