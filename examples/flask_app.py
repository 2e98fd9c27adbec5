"""Flask: a request puts a task and answers; another asks how far it is.

python examples/flask_app.py [DIRECTORY]
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

from flask import Flask, request

from fastjournal import Tasks

tasks = Tasks()


@tasks.task(retry=5)
def count_words(text: str) -> int:
    """The work."""
    return len(text.split())


def create_app(where: str) -> Flask:
    """The factory says where the journal is; nothing is opened before it is used."""
    app = Flask(__name__)
    tasks.connect(where)

    @app.post("/texts")
    def take() -> Any:
        return {"id": count_words.put(request.form["text"]).id.hex()}, 202

    @app.get("/texts/<job>")
    def look(job: str) -> Any:
        handle = tasks.handle(job, count_words)
        state = handle.state
        return {"state": state, "words": handle.result()} if state == "done" else {"state": state}

    return app


def main(directory: str) -> None:
    """Two requests; in between a worker, which would be a process of its own."""
    import threading

    client = create_app(directory).test_client()
    job = client.post("/texts", data={"text": "to be or not to be"}).get_json()["id"]
    print(client.get(f"/texts/{job}").get_json())
    worker = tasks.worker(concurrency=1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    tasks.handle(job).wait(30)
    answer = client.get(f"/texts/{job}").get_json()
    worker.stop()
    thread.join()
    print(answer)
    assert answer == {"state": "done", "words": 6}
    tasks.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(sys.argv[1] if len(sys.argv) > 1 else f"{temporary}/jobs")
