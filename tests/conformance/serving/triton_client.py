"""Run by an interpreter that has tritonclient: the real client. Usage: TARGET TOKEN; prints JSON.

The server has "mlp" (x: FP32 [-1, 8] → y), version v1, and "text" (x: BYTES [-1] → y).
"""

import json
import sys

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException


def main(target, token):
    headers = {"x-isthmus-identity": token}
    client = triton.InferenceServerClient(target)
    found = {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model_ready": client.is_model_ready("mlp", headers=headers),
        "server": client.get_server_metadata(as_json=True),
        "metadata": client.get_model_metadata("mlp", headers=headers, as_json=True),
        "config": client.get_model_config("mlp", headers=headers, as_json=True)["config"],
    }
    x = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)
    given = triton.InferInput("x", x.shape, "FP32")
    given.set_data_from_numpy(x)
    result = client.infer(
        "mlp", [given], outputs=[triton.InferRequestedOutput("y")], request_id="7", headers=headers
    )
    found["sums"] = result.as_numpy("y").sum(axis=1).tolist()
    found["id"] = result.get_response(as_json=True)["id"]
    found["version"] = result.get_response(as_json=True)["model_version"]
    futures = []
    for _ in range(16):
        done = []
        client.async_infer(
            "mlp", [given], lambda result, error, done=done: done.append(error), headers=headers
        )
        futures.append(done)
    client.infer("mlp", [given], headers=headers)
    words = np.array([b"one", b"", b"drei"], np.object_)
    text = triton.InferInput("x", words.shape, "BYTES")
    text.set_data_from_numpy(words)
    found["words"] = [word.decode() for word in client.infer("text", [text], headers=headers).as_numpy("y")]
    try:
        wrong = triton.InferInput("x", [1, 9], "FP32")
        wrong.set_data_from_numpy(np.zeros((1, 9), np.float32))
        client.infer("mlp", [wrong], headers=headers)
    except InferenceServerException as error:
        found["refusal"] = [error.status(), error.message()]
    client.unload_model("text", headers=headers)
    found["unloaded"] = client.is_model_ready("text", headers=headers)
    client.load_model("text", headers=headers)
    found["loaded"] = client.is_model_ready("text", headers=headers)
    found["index"] = client.get_model_repository_index(headers=headers, as_json=True)["models"]
    client.close()
    # Closing waits for what was sent.
    found["async_errors"] = [str(error) for done in futures for error in done if error is not None]
    client = triton.InferenceServerClient(target)
    found["statistics"] = client.get_inference_statistics("mlp", headers=headers, as_json=True)["model_stats"]
    client.close()
    print(json.dumps(found))


main(*sys.argv[1:])
